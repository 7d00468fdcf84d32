"""Layers that pipelines or slices cannot share are refused, with degrees that work."""

import contextlib
import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.parallel.degrees import StagePlan, check_tensor
from tests.support.engine.small_runs import MODEL


@settings(deadline=None)
@given(
    st.sampled_from(["naive", "interleaved", "zero_bubble_v"]),
    st.integers(2, 6),
    st.integers(1, 12),
    st.integers(2, 5),
)
def test_pipelines_with_too_few_layers_are_refused_with_a_way_that_works(
    schedule: Any, pp: int, num_layers: int, stages: int
) -> None:
    stages = stages if schedule == "interleaved" else 0
    try:
        StagePlan(schedule, pp, num_layers, stages)
    except ConfigError as error:
        way_out = str(error).partition("; ")[2]
        most, single = re.search(r"at most pp=(\d+)", way_out), "1f1b" in way_out
        assert most or single or "pp=1" in way_out
        assert way_out.startswith("use ")
        if most:
            assert StagePlan(schedule, int(most[1]), num_layers, stages).num_ranks in range(2, pp)
        if fewer := re.search(r"pp_stages_per_rank=([1-9])", way_out):
            assert StagePlan(schedule, pp, num_layers, int(fewer[1])).per_rank < stages
        if single:
            StagePlan("1f1b", pp, num_layers)


@pytest.mark.parametrize(
    ("model", "tokens", "ranks", "rule"),
    [
        ({"num_kv_heads": 4, "ffn_dim": 44}, 16, 4, None),
        ({"num_kv_heads": 2}, 16, 4, None),
        ({"num_kv_heads": 1}, 16, 4, None),
        ({"num_heads": 8, "num_kv_heads": 1, "dim": 16}, 16, 8, r"num_kv_heads .1. .* by 8 .*tp=4"),
        (
            {"num_kv_heads": 4, "ffn_dim": 42},
            16,
            4,
            r"ffn_dim .42. .* at most 2 .blocks of gate and up.; try tp=2",
        ),
        (
            {"num_kv_heads": 4},
            18,
            4,
            r"tokens of a sequence on one process .18. .*; try tp=2 or sequence_parallel=false",
        ),
        (
            {"num_heads": 6, "num_kv_heads": 6, "dim": 48},
            16,
            4,
            r"num_kv_heads .6. must be shared by 4 .*; try tp=2",
        ),
        ({"num_kv_heads": 4, "ffn_dim": 47}, 16, 4, r"ffn_dim .47. .* at most 1 .*; try tp=1"),
        (
            {"num_kv_heads": 4, "vocab_size": 9},
            16,
            4,
            r"vocab_size .9. must leave each of 4 tensor ranks some ids",
        ),
    ],
)
def test_layers_that_cannot_be_shared_are_refused(
    model: dict[str, Any], tokens: int, ranks: int, rule: str | None
) -> None:
    with pytest.raises(ConfigError, match=rule) if rule else contextlib.nullcontext():
        check_tensor(dataclasses.replace(MODEL, **model), tokens, ranks, sequence=True)

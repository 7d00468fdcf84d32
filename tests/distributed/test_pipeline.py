"""Checks which layers a pipeline process holds, and which pipelines and slices are refused."""

import itertools
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import global_name
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.degrees import LOOPED, V_SHAPED, StagePlan, check_context
from llm_core.parallel.pipelining.stages import split_model
from tests.support.engine.small_runs import MODEL

SCHEDULES = ["naive", "gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v", "dualpipe_v"]


@given(st.sampled_from(SCHEDULES), st.integers(1, 6), st.integers(0, 20), st.integers(0, 2))
def test_every_layer_lies_in_one_stage_and_every_stage_has_layers(
    schedule: str, num_ranks: int, more_layers: int, more_stages: int
) -> None:
    per_rank = 2 + more_stages if schedule in LOOPED else 2 if schedule in V_SHAPED else 1
    plan = StagePlan(schedule, num_ranks, num_ranks * per_rank + more_layers, per_rank)  # type: ignore[arg-type]
    stages = [stage for rank in range(num_ranks) for stage in plan.stages_of(rank)]
    assert sorted(stages) == list(range(plan.num_stages))
    layers = [plan.layers_of(stage) for stage in range(plan.num_stages)]
    assert [layer for part in layers for layer in part] == list(range(plan.num_layers))
    assert max(map(len, layers)) - min(map(len, layers)) <= 1 and min(map(len, layers)) >= 1
    if schedule in V_SHAPED:
        assert plan.owner_of(0) == plan.owner_of(plan.num_stages - 1) == 0


@given(st.integers(1, 5), st.integers(0, 6), st.floats(0, 4, width=16), st.floats(0, 9, width=16))
def test_no_other_cut_has_a_cheaper_dearest_stage(
    num_ranks: int, more_layers: int, first: float, last: float
) -> None:
    plan = StagePlan("gpipe", num_ranks, num_ranks + more_layers, ends=(first, last))

    def dearest(bounds: tuple[int, ...]) -> float:
        costs = [end - begin for begin, end in pairwise((0, *bounds, plan.num_layers))]
        costs[0] += first
        costs[-1] += last
        return max(costs)

    own = tuple(plan.layers_of(stage).stop for stage in range(num_ranks - 1))
    cuts = itertools.combinations(range(1, plan.num_layers), num_ranks - 1)
    assert dearest(own) == min(map(dearest, cuts))
    if num_ranks > 1 and first == last == 0:
        sizes = [len(plan.layers_of(stage)) for stage in range(num_ranks)]
        assert sizes == sorted(sizes), "the last stage keeps the fewest activations"
    most = plan.costs_most()
    assert dearest(own) == plan.num_layers_of(most) + first * (most == 0) + last * (
        most == num_ranks - 1
    )


def test_a_large_vocabulary_leaves_the_last_stage_fewer_layers() -> None:
    llama = ModelConfig(128256, 4096, 32, 32, 8, 14336, 8192, tied_embeddings=False)
    plan = ParallelConfig("ddp", 4, pp=4).plan(llama)
    assert plan is not None
    assert [plan.num_layers_of(rank) for rank in range(4)] == [8, 9, 9, 6]


@settings(deadline=None, max_examples=8)
@given(st.sampled_from(SCHEDULES), st.integers(2, 4), st.booleans(), st.booleans())
def test_processes_hold_each_weight_once_by_its_global_name(
    schedule: str, num_ranks: int, tied: bool, gpt2: bool
) -> None:
    family: dict[str, Any] = (
        {"norm": "layer", "ffn": "gelu", "positions": "learned"} if gpt2 else {}
    )
    biases = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), gpt2)
    config = ModelConfig(
        11, 8, 2 * num_ranks + 1, 2, 2, 8, 16, tied_embeddings=tied, **family, **biases
    )
    plan = StagePlan(schedule, num_ranks, config.num_layers)  # type: ignore[arg-type]
    held: list[str] = []
    for rank in range(num_ranks):
        model, parts = split_model(config, plan, rank)
        names = [name for name, _ in model.named_parameters()]
        assert sorted(names) == sorted(
            name for part in parts.values() for name, _ in part.named_parameters()
        )
        assert all(plan.has_weight(rank, name) for name in names)
        held += names
    assert (
        len(held)
        == len(set(held))
        == (5 + 12 * config.num_layers if gpt2 else 3 + 6 * config.num_layers)
    )
    assert {global_name(config, "head.weight")} == {"embedding.weight" if tied else "head.weight"}


@pytest.mark.parametrize(
    ("plan", "micro_batches", "rule"),
    [
        (("diagonal", 2, 4), 4, "must be one of naive"),
        (("1f1b", 4, 3), 4, "num_layers .3. must fill the 4 stages"),
        (("1f1b", 2, 4, 2), 4, "pp_stages_per_rank .2. must be 1"),
        (("dualpipe_v", 2, 8, 3), 4, "pp_stages_per_rank .3. must be 2"),
        (("interleaved", 2, 8, 1), 4, "pp_stages_per_rank .1. must be 2 or more"),
        (("1f1b", 4, 4), 3, "must be at least the 4 stages"),
        (("dualpipe_v", 2, 4), 3, "must be at least the 4 stages"),
        (("interleaved", 4, 8), 9, "a multiple of 2 .*try 8"),
    ],
)
def test_pipelines_that_cannot_run_are_refused_with_a_way_out(
    plan: tuple[str, int, int], micro_batches: int, rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        StagePlan(*plan).check_micro_batches(micro_batches)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"seq_len": 18}, r"seq_len .18. must be a multiple of 4 .*seq_len=16"),
        ({"seq_len": 12, "balanced": True}, "multiple of 8 .4 context ranks x 2"),
        ({"kind": "ulysses"}, "num_kv_heads .2. must be a multiple of the 4 context ranks x 1"),
        ({"kind": "ulysses", "balanced": True}, "set it false"),
        ({"kind": "ring", "seq_len": 12, "balanced": True}, "multiple of 8 .4 context ranks x 2"),
    ],
)
def test_slices_that_do_not_divide_are_refused_with_a_way_out(
    change: dict[str, Any], rule: str
) -> None:
    values = {"seq_len": 16, "num_ranks": 4, "kind": "all_gather", "balanced": False} | change
    with pytest.raises(ConfigError, match=rule):
        check_context(MODEL, **values)

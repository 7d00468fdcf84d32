"""Runs with impossible settings are refused before they start, by a line with the way out."""

import dataclasses
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.data.config import DataConfig
from llm_core.memory.config import MemoryConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import SPLIT_BACKWARD, ParallelConfig
from llm_core.training.run_config import check_run
from tasks.runtime.code import ROOT
from tests.support.engine.small_runs import MODEL, TRAIN


def test_global_batch_must_divide_over_processes_and_micro_batches() -> None:
    with pytest.raises(
        ConfigError,
        match=r"global_batch_sequences \(8\).*micro_batch_sequences x num_processes \(2 x 3\).*=6",
    ):
        check_run(MODEL, TRAIN, ParallelConfig("ddp", 3))


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 2),
    st.sampled_from(["1f1b", "interleaved"]),
)
def test_the_micro_batch_that_is_offered_can_run(
    batch: int, micro: int, dp: int, pp: int, schedule: Any
) -> None:
    model = dataclasses.replace(MODEL, num_layers=4)
    parallel = ParallelConfig("ddp", dp * pp, pp=pp, pp_schedule=schedule)
    asked = dataclasses.replace(TRAIN, global_batch_sequences=batch, micro_batch_sequences=micro)
    try:
        check_run(model, asked, parallel)
    except ConfigError as error:
        offered = re.search(
            r"; try micro_batch_sequences=(\d+) for the same steps, or try", str(error)
        )
        if offered:
            check_run(
                model, dataclasses.replace(asked, micro_batch_sequences=int(offered[1])), parallel
            )
        else:  # not even one sequence at a time
            with pytest.raises(ConfigError):
                check_run(model, dataclasses.replace(asked, micro_batch_sequences=1), parallel)


def test_sequences_must_fit_the_model() -> None:
    with pytest.raises(ConfigError, match=r"seq_len \(65\).*max_seq_len \(64\)"):
        check_run(MODEL, dataclasses.replace(TRAIN, seq_len=65), ParallelConfig())


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (OptimConfig, {"lr": 0.0}),
        (OptimConfig, {"lr": 1.0, "beta1": 1.0}),
        (OptimConfig, {"lr": 1.0, "clip_norm": 0.0}),
        (ParallelConfig, {"kind": "none", "num_processes": 2}),
        (ParallelConfig, {"device": "cpu", "backend": "nccl"}),
    ],
)
def test_impossible_settings_are_refused(make: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(**values)


@pytest.mark.parametrize(
    ("parallel", "rule"),
    [
        (
            {"num_processes": 3, "pp": 2},
            (
                r"num_processes .3. must be a multiple of pp x cp x tp .2 x 1 x 1. .no other"
                r" product .*; num_processes=2 can"
            ),
        ),
        (
            {"num_processes": 4, "pp": 3},
            r"pp x cp x tp .3 x 1 x 1. .nearest that can run: pp 2 x dp 2 x cp 1 x tp 1 or pp 1 x",
        ),
        (
            {"num_processes": 4, "cp": 2, "tp": 2, "cp_kind": "ulysses"},
            (
                r"for ulysses; use all_gather or ring .num_processes 4 = pp 1 x dp 1 x cp 2 x tp 2;"
                r" nearest that can run: pp 1 x "
            ),
        ),
        (
            {"num_processes": 8, "tp": 8},
            r"model.num_kv_heads .2. must be shared by 8 tensor ranks .* the 4 query .*; try tp=4",
        ),
        (
            {"num_processes": 2, "pp": 2, "pp_schedule": "dualpipe_v"},
            r"num_layers .2. must fill the 4 stages",
        ),
        (
            {"num_processes": 2, "pp": 2, "pp_schedule": "interleaved", "pp_stages_per_rank": 3},
            (
                r"num_layers .2. must fill the 6 stages .*; use a schedule of one stage per rank as"
                r" 1f1b and pp_stages_per_rank=0"
            ),
        ),
        (
            {"num_processes": 2, "pp": 2, "pp_stages_per_rank": 3},
            r"pp_stages_per_rank .3. must be 1 for schedule 1f1b",
        ),
        (
            {"num_processes": 2, "cp": 2, "cp_balanced": True, "cp_kind": "ulysses"},
            r"cp_balanced .true. serves all_gather",
        ),
        ({"num_processes": 3, "cp": 3}, r"train.seq_len .16. must be a multiple of 3 .*seq_len=15"),
        (
            {"num_processes": 4, "cp": 4, "cp_kind": "ulysses"},
            r"num_kv_heads .2. must be a multiple of the 4",
        ),
        (
            {"num_processes": 2, "tp_overlap": "ring"},
            r"tp_overlap .ring. needs .*, tp is 1 and .*; set tp_overlap=none",
        ),
        (
            {"num_processes": 2, "tp": 2, "tp_overlap": "ring", "sequence_parallel": False},
            r"tp is 2 and sequence_parallel false; .*sequence_parallel=true",
        ),
        (
            {"num_processes": 2, "tp": 2, "tp_overlap": "symmetric", "device": "cpu"},
            r"tp_overlap .symmetric. .*, device is cpu; set tp_overlap=ring",
        ),
        (
            {"num_processes": 8, "pp": 2},
            r"micro batches in a step of one pipeline .1. must be at least the 2 stages",
        ),
        (
            {"num_processes": 6, "pp": 2},
            r"micro_batch_sequences x data-parallel degree .2 x 3.; try global_batch_sequences=6",
        ),
    ],
)
def test_pipelines_and_slices_that_cannot_run_are_refused(
    parallel: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        check_run(MODEL, TRAIN, ParallelConfig("ddp", **parallel))


@pytest.mark.parametrize(
    ("train", "parallel", "rule"),
    [
        ({"attention": "varlen"}, {}, "train.attention .varlen. takes 16-bit numbers"),
        (
            {"attention": "flash", "dtype": "bf16", "data": DataConfig(mask_documents=True)},
            {},
            "cannot keep documents apart",
        ),
        (
            {"attention": "varlen", "dtype": "bf16"},
            {"num_processes": 2, "cp": 2},
            "attends whole rows only",
        ),
        (
            {"attention": "flex"},
            {"num_processes": 2, "cp": 2, "cp_kind": "ring"},
            (
                "flex. does not give the parts .*auto, sdpa or reference, or cp_kind=all_gather or"
                " cp_kind=ulysses"
            ),
        ),
        (
            {"attention": "flash", "dtype": "bf16"},
            {"num_processes": 2, "cp": 2, "cp_kind": "ring"},
            "flash. does not give the parts .*, or cp_kind=ulysses",
        ),
    ],
)
def test_kernels_that_cannot_attend_a_run_are_refused(
    train: dict[str, Any], parallel: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        check_run(MODEL, dataclasses.replace(TRAIN, **train), ParallelConfig("ddp", **parallel))


@pytest.mark.parametrize(
    ("kind", "dtype", "memory", "rule"),
    [
        ("ddp", "bf16", MemoryConfig(), "for sharded weights, .* is ddp; set parallel=zero1"),
        ("zero1", "fp32", MemoryConfig(), "train.dtype, which is fp32; set train.dtype=bf16"),
        ("fsdp", "bf16", MemoryConfig(weights_in="host"), "off it; set train.gradient_bits=32"),
    ],
)
def test_short_gradients_are_refused_where_nothing_keeps_them(
    kind: Any, dtype: Any, memory: MemoryConfig, rule: str
) -> None:
    train = dataclasses.replace(TRAIN, dtype=dtype, gradient_bits=16)
    with pytest.raises(ConfigError, match=rule):
        check_run(MODEL, train, ParallelConfig(kind, 2), memory)


def test_config_of_pipelines_and_slices_needs_no_torch() -> None:
    code = "import sys; import llm_core.training.config; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("schedule", SPLIT_BACKWARD)
def test_compiled_blocks_are_refused_where_their_backward_is_taken_apart(schedule: str) -> None:
    model, train = (
        dataclasses.replace(MODEL, num_layers=4),
        dataclasses.replace(TRAIN, compile=True, micro_batch_sequences=1),
    )
    with pytest.raises(
        ConfigError,
        match=(
            rf"train.compile \(true\) .*pp_schedule={schedule} .*; use the schedule 1f1b or interl"
        ),
    ):
        check_run(model, train, ParallelConfig("ddp", 2, pp=2, pp_schedule=schedule))  # type: ignore[arg-type]
    check_run(model, train, ParallelConfig("ddp", 2, pp=2, pp_schedule="interleaved"))
    check_run(model, train, ParallelConfig("ddp", 2, pp_schedule=schedule))  # type: ignore[arg-type]

"""Layouts give the answer of one process, on batches whose micro batches and ranks count unequally:
part of the matrix."""

import json
from dataclasses import replace

import pytest

from llm_core.memory.config import MemoryConfig
from tests.support.distributed.cases import (
    COPIED_KEYS,
    FROZEN,
    GRID_CROSS,
    GRIDS,
    LAYOUTS,
    Case,
    layout,
    micro_sizes,
    rows_for,
)
from tests.support.distributed.matrix import Run, failures, from_plain, to_plain, whole_matrix
from tests.support.distributed.problem import Problem
from tests.support.distributed.processes import run_program
from tests.support.distributed.trained_cases import (
    ADAPTED,
    ADAPTED_CROSS,
    CODED,
    DECOMPOSED,
    EXPERTS,
    NOISY,
    PAIRS,
    SENT,
    SENT_CROSS,
    SPARSE,
    YOUNGER,
)

IDLE = Problem(tied=False, masks="idle", packed=True)
FAST = [
    Run(Case(layout(4, "fsdp", tp=2), FROZEN[0], 1)),
    Run(Case(layout(4, "zero1", pp=2), FROZEN[0], 1), layout(4, "fsdp", tp=2)),
    Run(Case(layout(4, "zero1"), Problem(vocab=64, state_in="disk", ema=0.5), 2)),
    Run(Case(layout(4, "zero2"), Problem(family="qwen3"), 1)),
    Run(Case(layout(4, "zero1"), Problem(dtype="bf16", gradient_bits=16), 1)),
    Run(Case(layout(4, "zero2", pp=2), Problem(dtype="bf16", gradient_bits=16, layers=4), 1)),
    Run(Case(layout(4, "ddp", tp=4), Problem(masks="idle", optim="adafactor", z_loss=0.1), 4)),
    Run(
        Case(
            layout(4, "fsdp", tp=2),
            IDLE,
            2,
            MemoryConfig("selective", loss_chunk_tokens=5, ffn_tiles=3, weights_in="host"),
        )
    ),
    Run(Case(layout(4, "zero1", tp=2), Problem(optim="muon", family="gpt2", ema=0.5), 2)),
    Run(Case(layout(4, "ddp", tp=2, sequence_parallel=False), Problem(family="qwen3"), 4)),
    Run(Case(layout(4, "ddp", pp=4, pp_schedule="dualpipe_v"), Problem(layers=8, packed=True), 1)),
    Run(
        Case(
            layout(4, "fsdp", pp=2, pp_schedule="zero_bubble"),
            replace(IDLE, layers=4),
            1,
            MemoryConfig("every", every_k=2, loss_chunk_tokens=5, ffn_tiles=2),
        )
    ),
    Run(
        Case(
            layout(4, "ddp", pp=2, tp=2, pp_schedule="naive"),
            replace(IDLE, z_loss=0.1),
            2,
            MemoryConfig("selective", loss_chunk_tokens=7),
        )
    ),
    Run(
        Case(
            layout(4, "zero1", pp=2, tp=2, pp_schedule="zero_bubble", tp_overlap="ring"),
            Problem(family="gpt2", layers=4, packed=True),
            1,
            MemoryConfig("full"),
        )
    ),
    Run(
        Case(
            layout(4, "zero2", cp=2, cp_balanced=True),
            Problem(packed=True),
            2,
            MemoryConfig("full", loss_chunk_tokens=3),
        )
    ),
    Run(Case(layout(4, "ddp", cp=2, tp=2, cp_kind="ulysses"), IDLE, 4)),
    Run(
        Case(
            layout(4, "zero1", pp=2, cp=2), Problem(vocab=400, layers=4, masks="empty", ema=0.5), 2
        )
    ),
    Run(Case(layout(4, "fsdp", tp=2), Problem(masks="empty", dtype="fp16"), 2)),
    Run(
        Case(
            layout(4, "ddp", cp=4, cp_kind="ring", cp_balanced=True),
            IDLE,
            4,
            MemoryConfig("selective"),
        )
    ),
    Run(
        Case(
            layout(4, "hsdp", dp_shard=2),
            Problem(dtype="fp32", state_in="disk"),
            1,
            MemoryConfig(weights_in="host"),
        )
    ),
    Run(
        Case(
            layout(4, "fsdp", tp=2),
            Problem(tied=False, state_in="disk", layers=3),
            2,
            MemoryConfig("selective", weights_in="disk"),
        )
    ),
    Run(
        Case(
            layout(4, "fsdp"),
            Problem(packed=True),
            2,
            MemoryConfig("full", ffn_tiles=2, ffn_gather="tiles"),
        )
    ),
    Run(
        Case(
            layout(4, "fsdp"),
            Problem(dtype="bf16", tied=False),
            1,
            MemoryConfig(ffn_tiles=2, ffn_gather="tiles"),
        )
    ),
    Run(
        Case(
            layout(4, "hsdp", dp_shard=2),
            Problem(dtype="bf16", state_in="disk"),
            1,
            MemoryConfig(weights_in="disk"),
        )
    ),
    Run(
        Case(
            layout(4, "fsdp", tp=2),
            Problem(dtype="bf16", packed=True),
            2,
            MemoryConfig("full", ffn_tiles=2),
        )
    ),
    Run(Case(layout(4, "fsdp", tp=2), Problem(vocab=50257, dtype="fp32"), 4)),
    *(Run(case) for case in COPIED_KEYS[1:4]),
    Run(COPIED_KEYS[6]),
    Run(COPIED_KEYS[0], layout(4, "fsdp")),
    *(Run(ADAPTED[number]) for number in (3, 7, 9, 13, 18)),
    *(Run(PAIRS[number]) for number in (1, 3, 5, 7)),
    *(Run(NOISY[number]) for number in (0, 2, 5)),
    *(Run(DECOMPOSED[number]) for number in (2, 3)),
    *(Run(EXPERTS[number]) for number in (5, 8, 9, 10, 12)),
    Run(
        Case(layout(4, "fsdp", tp=2), Problem(family="glm4_moe", layers=4), 1),
        layout(4, "zero1", pp=2),
    ),
    *(Run(SENT[number]) for number in (2, 3, 4)),
    Run(Case(SENT_CROSS[0][0], Problem(family="glm4_moe", layers=4), 1), SENT_CROSS[0][1]),
    *(Run(SPARSE[number]) for number in (3, 4, 5)),
    *(Run(CODED[number]) for number in (3, 4, 6)),
    *(Run(YOUNGER[number]) for number in (5, 8, 11, 12)),
    *(Run(GRIDS[number]) for number in (1, 22, 32)),
    Run(Case(GRID_CROSS[0][0], Problem(), 2), GRID_CROSS[0][1]),
    Run(
        Case(
            layout(4, "fsdp", tp=2),
            Problem(adapter="lora"),
            2,
            MemoryConfig("selective", loss_chunk_tokens=5),
        )
    ),
    *(Run(Case(one, p, 1), into) for p, one, into in ADAPTED_CROSS[1:4]),
    Run(Case(layout(4, "ddp", tp=4), Problem(), 1), layout(1, "none")),
    Run(Case(layout(4, "fsdp", tp=2), Problem(optim="muon", ema=0.5), 1), layout(4, "zero1", pp=2)),
    Run(
        Case(layout(4, "zero1", pp=2), Problem(optim="adafactor", tied=False), 1),
        layout(4, "zero1", tp=2),
    ),
    Run(Case(layout(1, "none"), Problem(state_in="disk"), 1), layout(4, "hsdp", dp_shard=2)),
    Run(
        Case(
            layout(4, "zero1", pp=2, pp_schedule="zero_bubble_v"),
            Problem(dtype="fp16", layers=4),
            1,
        )
    ),
    Run(Case(layout(8, "zero1", pp=2, tp=2), Problem(state_in="host"), 2)),
]
"""Among them some that save memory or keep state elsewhere, which changes no answer either."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    folder = tmp_path_factory.mktemp("exactness")
    (folder / "runs.json").write_text(json.dumps([to_plain(run) for run in FAST]), "utf-8")
    arguments = [str(folder / "made"), "--only", str(folder / "runs.json")]
    run_program("tests.support.distributed.matrix", arguments, folder, timeout_s=600)
    differences: list[dict[str, float]] = json.loads(
        (folder / "made" / "found.json").read_text("utf-8")
    )
    return differences


@pytest.mark.parametrize(
    "number", range(len(FAST)), ids=[f"{run.name}, {run.case.problem.dtype}" for run in FAST]
)
def test_layouts_give_the_answer_of_one_process_and_read_each_others_checkpoints(
    found: list[dict[str, float]], number: int
) -> None:
    assert failures(FAST[number], found[number]) == []
    assert set(found[number]) >= (
        {"loaded", "continued"}
        if FAST[number].into
        else {"initial", "loss", "gradient", "parameter"}
    )


def test_the_matrix_varies_every_layout_and_exchanges_checkpoints_with_each() -> None:
    runs = whole_matrix()
    for parallel in LAYOUTS[1:]:
        own = [run.case for run in runs if run.case.parallel == parallel and run.into is None]
        problems = {case.problem for case in own if case.problem.dtype == "fp64"}
        for name, values in (
            ("vocab", {51, 64}),
            ("tied", {True, False}),
            ("masks", {"uneven", "idle"}),
        ):
            assert {getattr(problem, name) for problem in problems} >= values
        assert {case.micro for case in own} == set(
            micro_sizes(parallel, rows_for(parallel))
        ) and len({case.micro for case in own}) == 2
        assert {run.into for run in runs if run.case.parallel == parallel} >= {None, LAYOUTS[0]}
        assert any(run.into == parallel for run in runs)
    assert all(from_plain(json.loads(json.dumps(to_plain(run)))) == run for run in runs)


def test_a_difference_beyond_rounding_is_a_failure() -> None:
    run = FAST[0]
    assert failures(run, {"loss": 2e-10, "parameter": 1e-11}) == ["loss 2e-10"]
    rough = Run(replace(run.case, problem=Problem(dtype="bf16")))
    assert failures(rough, {"loss": 2e-10, "initial": 1.0}) == ["initial 1"]

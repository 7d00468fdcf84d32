"""What saves memory changes no answer under any layout: chunks of the loss, recomputing, tiles
(some in test_exactness)."""

import dataclasses
import json
from pathlib import Path

import pytest

from llm_core.memory.config import MemoryConfig
from tests.support.distributed.cases import layout
from tests.support.distributed.matrix import Run, failures, is_possible, savings_matrix, to_plain
from tests.support.distributed.problem import Problem
from tests.support.distributed.processes import run_program


def differences(runs: list[Run], folder: Path) -> list[dict[str, float]]:
    (folder / "runs.json").write_text(json.dumps([to_plain(run) for run in runs]), "utf-8")
    run_program(
        "tests.support.distributed.matrix",
        [str(folder), "--only", str(folder / "runs.json")],
        folder,
        timeout_s=1200,
    )
    found: list[dict[str, float]] = json.loads((folder / "found.json").read_text("utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_savings_of_memory_give_the_answer_of_the_plain_run_under_every_layout(
    tmp_path: Path,
) -> None:
    # A third of them, which changes from layout to layout; `make exactness` takes all.
    runs = savings_matrix()[::3]
    assert {run.name for run in runs} == {run.name for run in savings_matrix()}
    found = differences(runs, tmp_path)
    assert [
        (run.name, run.case.memory, failures(run, one))
        for run, one in zip(runs, found, strict=True)
        if failures(run, one)
    ] == []


def test_a_selective_zero_bubble_is_refused_with_the_way_out() -> None:
    parallel = dataclasses.replace(layout(4, "ddp", pp=4), pp_schedule="zero_bubble")
    assert not is_possible(parallel, MemoryConfig(recompute="selective"), Problem(layers=8))
    assert is_possible(parallel, MemoryConfig(recompute="full"), Problem(layers=8))

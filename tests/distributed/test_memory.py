"""What saves memory changes no answer under any layout: chunks of the loss, recomputing, tiles
(some in test_exactness)."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations import check_memory
from tests.support.distributed.cases import LAYOUTS, Case, Problem, layers_for, layout, micro_sizes
from tests.support.distributed.matrix import Run, failures, to_plain
from tests.support.distributed.processes import run_program


def memory(**values: Any) -> MemoryConfig:
    return MemoryConfig(**values)


def whole_matrix() -> list[Run]:
    """Each layout with each kind of saving alone and all together, as far as they go together."""
    savings = [
        memory(recompute="selective"),
        memory(recompute="every", every_k=2),
        memory(recompute="full"),
        memory(loss_chunk_tokens=5),
        memory(ffn_tiles=2),
        memory(weights_in="host"),
        memory(recompute="full", loss_chunk_tokens=9, ffn_tiles=2),
    ]
    runs = []
    for parallel, saving, dtype in itertools.product(LAYOUTS, savings, ("fp64", "bf16")):
        problem = Problem(
            layers=max(4, layers_for(parallel)),
            tied=dtype == "fp64",
            packed=dtype == "bf16",
            dtype=dtype,
        )
        if is_possible(parallel, saving, problem):
            runs.append(
                Run(Case(parallel, problem, micro_sizes(parallel, problem.rows)[-1], saving))
            )
    return runs


def is_possible(parallel: ParallelConfig, saving: MemoryConfig, problem: Problem) -> bool:
    try:
        check_memory(saving, problem.model(), parallel)
    except ConfigError:
        return False
    return True


def differences(runs: list[Run], folder: Path) -> list[dict[str, float]]:
    (folder / "runs.json").write_text(json.dumps([to_plain(run) for run in runs]), "utf-8")
    run_program(
        "tests.support.distributed.matrix",
        [str(folder), "--only", str(folder / "runs.json")],
        folder,
        timeout_s=2400,
    )
    found: list[dict[str, float]] = json.loads((folder / "found.json").read_text("utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_every_saving_of_memory_gives_the_answer_of_the_plain_run_under_every_layout(
    tmp_path: Path,
) -> None:
    runs = whole_matrix()
    found = differences(runs, tmp_path)
    assert [
        (run.name, run.case.memory, failures(run, one))
        for run, one in zip(runs, found, strict=True)
        if failures(run, one)
    ] == []


def test_a_selective_zero_bubble_is_refused_with_the_way_out() -> None:
    parallel = dataclasses.replace(layout(4, "ddp", pp=4), pp_schedule="zero_bubble")
    assert not is_possible(parallel, memory(recompute="selective"), Problem(layers=8))
    assert is_possible(parallel, memory(recompute="full"), Problem(layers=8))

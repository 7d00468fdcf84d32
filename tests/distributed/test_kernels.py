"""Kernels of our own give the answer of torch's operations in one process, under every axis of a
layout.

By Triton's interpreter, where the package is installed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.distributed.cases import KERNELS
from tests.support.distributed.matrix import Run, failures, to_plain
from tests.support.distributed.processes import run_program


def check(runs: list[Run], folder: Path) -> None:
    pytest.importorskip("triton")
    (folder / "runs.json").write_text(json.dumps([to_plain(run) for run in runs]), "utf-8")
    run_program(
        "tests.support.distributed.matrix",
        [str(folder / "made"), "--only", str(folder / "runs.json")],
        folder,
        timeout_s=900,
    )
    found = json.loads((folder / "made" / "found.json").read_text("utf-8"))
    assert len(found) == len(runs)
    assert {
        run.name: failures(run, differences) for run, differences in zip(runs, found, strict=True)
    } == {run.name: [] for run in runs}


def test_kernels_of_tensor_ranks_with_sharded_weights_give_the_answer_of_one_process(
    tmp_path: Path,
) -> None:
    check([Run(KERNELS[0])], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_kernels_under_every_axis_give_the_answer_of_one_process(tmp_path: Path) -> None:
    check([Run(case) for case in KERNELS[1:]], tmp_path)

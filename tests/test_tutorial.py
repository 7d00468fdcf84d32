"""Runs the tutorial and the notebook as a reader would, with a model of seconds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.code import ROOT
from tests.support.written_commands import (
    as_written_but_small,
    fenced_commands,
    link_sample,
    run_in_a_shell,
)

TUTORIAL = (ROOT / "docs/tutorial.md").read_text("utf-8")
NOTEBOOK = ROOT / "examples/from_python.ipynb"


def run_tutorial(page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Every bash block of a page in one shell, in a folder with the embedded corpus."""
    alone = ["orchestrator=none", "tracking=off"]
    commands = []
    for command in fenced_commands(page):
        small = as_written_but_small(command, [])
        is_run = small != command and small.split()[1] in ("refresh", "run")
        commands.append(" ".join([small, *alone]) if is_run else small)
    return run_in_a_shell(commands, folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    done = run_tutorial(TUTORIAL, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"run_id"')]
    refreshed, trained = runs
    assert refreshed["stages"]["ingest"]["read"] == 250
    assert trained["stages"]["shards"]["cached"], "training uses the data of the step before"
    model = tmp_path / "data/store/train" / trained["stages"]["train"]["key"] / "model"
    assert (model / "model.safetensors").exists()
    assert Path(tmp_path / trained["report"]).exists()


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link_sample(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    for number, cell in enumerate(code_cells()):
        exec(compile(cell, f"cell {number} of {NOTEBOOK.name}", "exec"), names)
    counters, funnel = names["raw"].counters, names["documents"].metrics["funnel"]
    assert counters["read"] == counters["kept"] + sum(counters["dropped"].values()) == 250
    assert funnel[0]["documents"] == 250 and 0 < funnel[-1]["documents"] <= counters["kept"]
    assert names["table"].num_rows == names["documents"].counters["kept"]


def test_the_notebook_is_saved_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert [c["outputs"] for c in cells if c["cell_type"] == "code"] == [[]] * len(code_cells())

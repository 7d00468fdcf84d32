"""What several processes time, they run at the same time."""

from __future__ import annotations

from pathlib import Path

from tests.support.distributed.processes import run_program


def test_processes_run_equally_often_and_begin_together(tmp_path: Path) -> None:
    run_program("tests.support.distributed.lockstep", [str(tmp_path)], tmp_path)
    assert (tmp_path / "program.log").read_text("utf-8").count("right") == 2

"""Every collective is right in real groups of processes before it is timed."""

from __future__ import annotations

from pathlib import Path

from tests.support.distributed.processes import run_program


def test_every_collective_is_right_in_groups_of_two_and_four(tmp_path: Path) -> None:
    run_program("tests.support.distributed.collectives", [str(tmp_path)], tmp_path)
    assert (tmp_path / "program.log").read_text("utf-8").count("right") == 4

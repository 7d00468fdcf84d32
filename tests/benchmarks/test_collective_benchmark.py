"""Every collective is right in real groups of processes before it is timed."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.engine.collectives import chart_page
from llm_core.calibration.links import Timing
from tests.support.distributed.processes import run_program


def test_every_collective_is_right_in_groups_of_two_and_four(tmp_path: Path) -> None:
    run_program("tests.support.distributed.collectives", [str(tmp_path)], tmp_path)
    assert (tmp_path / "program.log").read_text("utf-8").count("right") == 4


def test_the_chart_has_a_line_for_each_kind_and_type() -> None:
    page = chart_page(
        [
            Timing("send", 2, dtype, False, size, 1e-3, 1e-3, True)
            for dtype in ("float32", "bfloat16")
            for size in (8, 64, 512)
        ]
    )
    drawn = re.findall(r'<polyline points="([^"]*)"', page)
    assert [len(points.split()) for points in drawn] == [3, 3]
    assert "send, float32" in page and "send, bfloat16" in page

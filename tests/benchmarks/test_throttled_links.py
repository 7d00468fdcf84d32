"""Throttled groups give gloo's results, as late as their links would bring them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine.layouts import MODELS, candidates, throttle
from llm_core.planner.hardware import HardwareConfig
from tests.support.distributed.processes import run_program

CPU = HardwareConfig("X", 6, 20, 0.2, 0.1, launches_ahead=False)


def test_throttled_collectives_take_the_time_of_their_links(tmp_path: Path) -> None:
    run_program("tests.support.distributed.throttled", [str(tmp_path)], tmp_path)
    assert (tmp_path / "program.log").read_text("utf-8").count("right") == 4


@pytest.mark.parametrize("name", MODELS)
def test_layouts_of_every_kind_are_held_against_each_other(name: str) -> None:
    found = candidates(name, throttle(CPU, 2.0, 10.0))
    assert {one.work.parallel.num_processes for one in found} == {4}
    assert {one.work.parallel.kind for one in found} == {"ddp", "zero1", "zero2", "fsdp"}
    degrees = {(p.pp, p.tp, p.dp) for p in (one.work.parallel for one in found)}
    assert degrees >= {(4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2)}
    assert len({one.name for one in found}) == len(found) > 50

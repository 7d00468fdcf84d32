"""Throttled groups give gloo's results, as late as their links would bring them."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine.layouts import (
    MODELS,
    add_rows,
    candidates,
    known_rows,
    select,
    setting_of,
    throttle,
)
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


@given(top=st.integers(0, 60), sample=st.integers(0, 60))
def test_a_selection_has_the_first_layouts_and_some_of_every_predicted_time(
    top: int, sample: int
) -> None:
    ranked = candidates("wide", throttle(CPU, 2.0, 10.0))
    found = select(ranked, top, sample)
    assert found[:top] == ranked[:top]
    others = [ranked.index(one) for one in found[top:]]
    assert len(found) == min(len(ranked), top + sample) and others == sorted(set(others))
    # No run of layouts goes unseen: gaps are of equal length, but for rounding.
    edges = [min(top, len(ranked)) - 1, *others, len(ranked)]
    gaps = [later - one for one, later in itertools.pairwise(edges)]
    if others:
        length = (len(ranked) - top) / len(others)
        assert max(gaps) <= length + 1


def test_a_table_continues_after_what_was_timed_of_the_same_model_and_links(
    tmp_path: Path,
) -> None:
    file, setting = tmp_path / "table.jsonl", argparse.Namespace(model="wide", start_ms=2, mb_s=10)
    assert known_rows(file, setting_of(setting)) == {}
    for name in ("pp 4", "tp 4"):
        add_rows(file, [setting_of(setting) | {"layout": name, "steps_s": [1.0], "load": 0.0}])
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])
    assert list(known_rows(file, setting_of(setting))) == ["pp 4", "tp 4"]
    add_rows(file, [setting_of(setting) | {"layout": "fsdp 4", "steps_s": [2.0], "load": 0.0}])
    assert file.read_bytes().startswith(whole), "a torn row is gone, and no whole one"
    assert list(known_rows(file, setting_of(setting))) == ["pp 4", "tp 4", "fsdp 4"]
    for other in ({"model": "long"}, {"mb_s": 4}):
        assert not known_rows(file, setting_of(argparse.Namespace(**vars(setting) | other)))

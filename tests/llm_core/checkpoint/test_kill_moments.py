"""Killed before any call of the file system, what writes a run leaves something to resume from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.distributed.processes import run_program

Found = dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """{scenario: (call, what remained of a kill before it)}"""
    folder = tmp_path_factory.mktemp("moments")
    run_program("tests.support.engine.kill_moments", [str(folder)], folder)
    return dict(json.loads((folder / "found.json").read_text("utf-8")))


def test_no_kill_while_saving_pruning_going_back_or_exporting_loses_the_run(found: Found) -> None:
    lost = [
        (scenario, call, what)
        for scenario, moments in found.items()
        for call, what in moments
        if "LOST" in what
    ]
    assert not lost


def test_the_kills_are_before_each_kind_of_call(found: Found) -> None:
    for scenario, moments in found.items():
        calls = [call for call, what in moments if what == "called"]
        assert {"open", "fsync", "os.rename"} <= {call.split()[0] for call in calls}, scenario
        assert len(calls) == len(moments) - len(calls) > 5, scenario
    assert {"os.remove", "os.rmdir"} <= {call.split()[0] for call, _ in found["go back"]}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_run_that_loses_power_at_any_moment_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    run_program("tests.support.engine.kill_moments", [str(tmp_path), "2"], tmp_path, timeout_s=850)
    moments = json.loads((tmp_path / "found.json").read_text("utf-8"))["run"]
    assert {what for _, what in moments} == {"finished", "called"}, [
        one for one in moments if "LOST" in one[1]
    ]
    assert any("points/" in call for call, _ in moments) and any(
        "model.safetensors" in call for call, _ in moments
    )

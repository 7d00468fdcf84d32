"""The same pipeline as Prefect flow runs, on a real server: states are what a person would expect
to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import StateType

from tasks.runtime.graph import STAGES


@pytest.fixture
def task_states(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """{task run name: final state} of every stage task, taken where the states are returned.

    Not from the server's rows: those are written later.
    """
    from tasks.runtime import prefect_tasks

    states: dict[str, Any] = {}
    original = type(prefect_tasks._stage_task).__call__

    def call(self: Any, stage: str, key: str, *arguments: Any, **options: Any) -> Any:
        states[f"{stage}-{key}"] = original(self, stage, key, *arguments, **options)
        return states[f"{stage}-{key}"]

    monkeypatch.setattr(type(prefect_tasks._stage_task), "__call__", call)
    return states


def run(overrides: list[str], places: list[str]) -> Any:
    from flows.pipeline import pipeline

    return pipeline(
        overrides=["source=sample", *overrides, *places, "tracking=off", "num_workers=1"],
        return_state=True,
    )


@pytest.mark.usefixtures("prefect_server")
def test_stages_are_task_runs_and_a_second_run_skips_them_all(
    stand_in_stages: list[str], places: list[str], task_states: dict[str, Any]
) -> None:
    first = run([], places)
    assert first.type is StateType.COMPLETED and first.message == "completed with quarantine"
    assert stand_in_stages == list(STAGES)
    keys = {name: stage["key"] for name, stage in first.result()["summary"]["stages"].items()}
    assert list(task_states) == [f"{name}-{key}" for name, key in keys.items()], (
        "task runs are named after artifacts"
    )
    assert {state.name for state in task_states.values()} == {"Completed"}

    stand_in_stages.clear()
    task_states.clear()
    second = run([], places)
    assert stand_in_stages == []
    assert {state.name for state in task_states.values()} == {"Skipped"} and len(
        task_states
    ) == len(STAGES)
    assert {state.type for state in task_states.values()} == {StateType.COMPLETED}
    assert second.result()["summary"]["val_bpb"] == first.result()["summary"]["val_bpb"] == 1.4


@pytest.mark.usefixtures("prefect_server", "stand_in_stages")
def test_what_a_user_can_mend_is_a_failed_state_with_its_one_line(
    places: list[str], task_states: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = run(["+typo=1"], places)
    assert state.type is StateType.FAILED and state.message.startswith(
        "typo is not a known setting"
    )
    monkeypatch.setenv("STAND_IN_TROUBLE", "quality:failure")
    state = run([], places)
    assert (
        state.type is StateType.FAILED
        and state.message == "quality kept no document; loosen its thresholds"
    )
    failed = [s for name, s in task_states.items() if name.startswith("quality-")]
    assert [s.type for s in failed] == [StateType.FAILED]


@pytest.mark.usefixtures("prefect_server", "stand_in_stages")
@pytest.mark.parametrize("trouble", ["interrupted", "sigterm"])
def test_stopped_stage_cancels_the_flow_run(
    trouble: str, places: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STAND_IN_TROUBLE", f"train:{trouble}")
    state = run([], places)
    assert state.type is StateType.CANCELLED
    (record,) = [json.loads(p.read_text()) for p in (tmp_path / "store" / ".runs").glob("*.json")]
    assert record["outcome"] == "interrupted" and record["process"]["prefect_flow_run_id"]


@pytest.mark.usefixtures("prefect_server", "stand_in_stages")
def test_defect_fails_the_flow_run_with_its_exception(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TROUBLE", "quality:defect")
    state = run([], places)
    assert state.type is StateType.FAILED
    assert isinstance(state.result(raise_on_failure=False), KeyError)

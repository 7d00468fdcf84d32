"""A run that finds everything in the store is a flow run like any other, and loads no Prefect."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from flows.commands import runs
from flows.run import Run
from flows.services.prefect_api import PrefectApi
from tasks.runtime.graph import STAGES
from tasks.runtime.stage import StageFailure
from tests.flows.conftest import RunCli


@pytest.fixture
def cached(stand_in_stages: list[str], run_cli: RunCli) -> dict[str, Any]:
    """The summary of a run that has made every stage."""
    done = run_cli("run")
    assert done["code"] == 0 and stand_in_stages == list(STAGES)
    return dict(done["summary"])


def last_flow_run(api: PrefectApi) -> dict[str, Any]:
    return next(api.pages("/flow_runs/filter", sort="START_TIME_DESC"))


def test_cached_run_is_a_flow_run_with_skipped_stages_table_and_log(
    api: PrefectApi, cached: dict[str, Any], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("Prefect's engine runs it")

    monkeypatch.setattr(runs, "_run_under_prefect", refuse)
    done = run_cli("run", orchestrator="prefect")
    assert done["code"] == 0
    flow_run = last_flow_run(api)
    assert (flow_run["state_type"], flow_run["state"]["message"]) == (
        "COMPLETED",
        "completed with quarantine",
    )
    assert flow_run["tags"] == ["textmill"] and flow_run["name"].startswith("pipeline source=")
    assert "source=sample" in flow_run["parameters"]["overrides"]
    chosen = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    tasks = {task["name"]: task for task in api.pages("/task_runs/filter", **chosen)}
    keys = {name: stage["key"] for name, stage in cached["stages"].items()}
    assert set(tasks) == {f"{name}-{key}" for name, key in keys.items()}
    assert {task["state_name"] for task in tasks.values()} == {"Skipped"}
    shards = tasks[f"shards-{keys['shards']}"]
    parents = {task["id"]: name.split("-")[0] for name, task in tasks.items()}
    edges = [parents[edge["id"]] for edge in shards["task_inputs"]["parents"]]
    assert edges == list(STAGES["shards"].parents)
    shown = api.ask("POST", "/artifacts/filter", {**chosen, "sort": "KEY_ASC"})
    assert {artifact["type"] for artifact in shown} == {"table", "progress"}
    logs = {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}}
    (log,) = api.ask("POST", "/logs/filter", logs)
    assert log["message"] in done["out"]


@pytest.mark.parametrize(
    ("error", "ended"),
    [(StageFailure("gone"), ("FAILED", "gone")), (KeyboardInterrupt(), ("CANCELLED", "inter"))],
)
def test_cached_run_that_does_not_end_well_ends_in_prefect(
    error: BaseException,
    ended: tuple[str, str],
    api: PrefectApi,
    cached: dict[str, Any],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Run, "stage", fail)
    assert run_cli("run", orchestrator="prefect")["code"] == (2 if ended[0] == "FAILED" else 130)
    flow_run = last_flow_run(api)
    assert flow_run["state_type"] == ended[0]
    assert str(flow_run["state"]["message"]).startswith(ended[1])


def test_a_run_with_something_to_make_is_left_to_prefect(
    api: PrefectApi, cached: dict[str, Any], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(runs, "_run_under_prefect", lambda name, *_: asked.append(name) or ({}, ""))
    run_cli("run", "force=[bench]", orchestrator="prefect")
    assert asked == ["run"]


def test_what_records_a_cached_run_loads_neither_prefect_nor_mlflow() -> None:
    program = (
        "import sys, flows.commands.runs, flows.live.cached_run, flows.stages;"
        "print(sorted({'prefect', 'mlflow', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

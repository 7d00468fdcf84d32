"""What MLflow knows after a run: parents, children, links, statuses; and that nothing depends on
it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.compose import compose
from flows.services.local import answers
from flows.services.processes import descendants, free_port, start_detached, stop
from flows.tracking.mlflow_log import ENVIRONMENT, MlflowLog
from flows.tracking.mlflow_names import numbers
from flows.tracking.runs import default_uri
from tasks.runtime.graph import STAGES
from tests.flows.conftest import RunCli
from tests.support import stand_ins


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One tracking database for all tests here, an experiment for each: its migrations take
    seconds."""
    return default_uri(tmp_path_factory.mktemp("tracking"))


class Tracked:
    """The runs of one experiment."""

    def __init__(self, uri: str, experiment: str) -> None:
        from mlflow import MlflowClient

        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(tracking_uri=uri)
        self.experiment = experiment

    def runs(self) -> list[Any]:
        found = self.client.get_experiment_by_name(self.experiment)
        return (
            list(
                self.client.search_runs(
                    [found.experiment_id], order_by=["attributes.start_time ASC"]
                )
            )
            if found
            else []
        )

    def parents(self) -> list[Any]:
        return [run for run in self.runs() if "stage" not in run.data.tags]

    def children(self, parent: Any) -> dict[str, Any]:
        return {
            run.data.tags["stage"]: run
            for run in self.runs()
            if "stage" in run.data.tags
            and run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        }


@pytest.fixture
def tracked(database: str, request: pytest.FixtureRequest) -> Tracked:
    return Tracked(database, request.node.name)


@pytest.fixture
def overrides(tracked: Tracked, database: str) -> list[str]:
    return [f"tracking.uri={database}", f"tracking.experiment='{tracked.experiment}'"]


@pytest.mark.usefixtures("stand_in_stages")
def test_run_has_one_parent_and_a_child_for_each_stage_it_executed(
    tracked: Tracked, overrides: list[str], run_cli: RunCli
) -> None:
    summary = run_cli("run", *overrides, tracking="local")["summary"]
    (parent,) = tracked.parents()
    kind = tracked.client.get_experiment(parent.info.experiment_id).tags["mlflow.experimentKind"]
    assert kind == "custom_model_development", "the UI shows training runs, not chats"
    assert parent.info.run_id == summary["mlflow_run_id"] and parent.info.status == "FINISHED"
    assert parent.data.params["tokenizer.vocab_size"] == "4096" and parent.data.params["model.dim"]
    assert parent.data.metrics["val_bpb"] == 1.4 and parent.data.metrics["decode_tok_s"] == 123.0
    files = {file.path for file in tracked.client.list_artifacts(parent.info.run_id)}
    assert files == {"config", "report.html"}
    assert {f.path for f in tracked.client.list_artifacts(parent.info.run_id, "config")} == {
        "config/overrides.txt",
        "config/resolved.yaml",
    }

    children = tracked.children(parent)
    assert list(STAGES) == [name for name in STAGES if name in children] and len(children) == len(
        STAGES
    )
    assert {child.info.status for child in children.values()} == {"FINISHED"}
    train = children["train"]
    assert "model.dim" in train.data.params and "tokenizer.vocab_size" not in train.data.params
    history = tracked.client.get_metric_history(train.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == [(1, 3.0), (2, 1.5), (3, 1.0)]
    history = tracked.client.get_metric_history(train.info.run_id, "val_loss")
    assert [(m.step, m.value) for m in history] == [(3, 1.25)]
    history = tracked.client.get_metric_history(train.info.run_id, "timing/tokens_per_s")
    assert [(m.step, m.value) for m in history] == [(2, 100.0), (3, 120.0)]
    assert train.data.tags["event.damaged_checkpoint"] == "step 2: kept as x.damaged"
    inputs = {entry.dataset.name: entry.dataset.digest for entry in train.inputs.dataset_inputs}
    assert inputs == {name: summary["stages"][name]["key"] for name in ("tokenizer", "shards")}
    assert children["ingest"].data.metrics["dropped/EMPTY"] == 1
    assert [f.path for f in tracked.client.list_artifacts(train.info.run_id)] == [
        "artifact.json",
        "profile",
    ]
    assert [f.path for f in tracked.client.list_artifacts(train.info.run_id, "profile")] == [
        "profile/rank-0.md"
    ]
    given = {
        name: [f.path for f in tracked.client.list_artifacts(children[name].info.run_id)]
        for name in ("analysis", "quality")
    }
    assert given == {
        "analysis": ["artifact.json", "scale.parquet"],
        "quality": ["artifact.json"],
    }, "tables, but none of documents"


@pytest.mark.usefixtures("stand_in_stages")
def test_cached_stage_is_a_link_to_the_run_that_made_it(
    tracked: Tracked, overrides: list[str], run_cli: RunCli
) -> None:
    run_cli("run", *overrides, tracking="local")
    run_cli("run", *overrides, tracking="local")
    first, second = tracked.parents()
    makers = tracked.children(first)
    assert tracked.children(second) == {}
    for name in STAGES:
        assert second.data.tags[f"reused.{name}"] == makers[name].info.run_id
    assert second.data.metrics["val_bpb"] == first.data.metrics["val_bpb"], (
        "headline numbers are there, cached or not"
    )
    assert second.data.params == first.data.params


@pytest.mark.usefixtures("stand_in_stages")
@pytest.mark.parametrize(
    ("trouble", "status"), [("failure", "FAILED"), ("ctrl-c", "KILLED"), ("interrupted", "KILLED")]
)
def test_status_says_how_a_run_ended(
    trouble: str,
    status: str,
    tracked: Tracked,
    overrides: list[str],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN_TROUBLE", f"quality:{trouble}")
    run_cli("run", *overrides, tracking="local")
    (parent,) = tracked.parents()
    children = tracked.children(parent)
    assert parent.info.status == status == children["quality"].info.status
    assert children["ingest"].info.status == "FINISHED" and "dedup" not in children
    assert parent.data.tags["error"]


@pytest.mark.usefixtures("stand_in_stages")
def test_sweep_groups_its_runs_and_carries_the_best(
    tracked: Tracked, overrides: list[str], run_cli: RunCli
) -> None:
    result = run_cli("refresh", "-m", "tokenizer.vocab_size=300,400", *overrides, tracking="local")
    assert result["code"] == 0, result["err"]
    parents = tracked.parents()
    (sweep,) = [run for run in parents if "mlflow.parentRunId" not in run.data.tags]
    points = [
        run for run in parents if run.data.tags.get("mlflow.parentRunId") == sweep.info.run_id
    ]
    assert sweep.info.status == "FINISHED" and len(points) == 2
    assert {run.data.params["tokenizer.vocab_size"] for run in points} == {"300", "400"}


@pytest.mark.usefixtures("stand_in_stages")
def test_run_without_a_reachable_server_finishes_with_one_warning(run_cli: RunCli) -> None:
    started = time.monotonic()
    result = run_cli("run", "tracking.uri=http://127.0.0.1:1", tracking="local")
    assert result["code"] == 0
    assert result["err"].count("the run continues") == 1
    assert result["summary"]["mlflow_run_id"] is None and result["summary"]["val_bpb"] == 1.4
    assert time.monotonic() - started < 60


@pytest.mark.usefixtures("stand_in_stages")
def test_a_missing_driver_costs_one_warning(run_cli: RunCli) -> None:
    result = run_cli(
        "run", "tracking.uri=postgresql://me:hidden@127.0.0.1:1/runs", tracking="local"
    )
    assert result["code"] == 0 and result["err"].count("the run continues") == 1, result["err"]
    assert "No module named" in result["err"] and "install the driver" in result["err"]
    assert "hidden" not in result["err"] + result["out"]


@pytest.mark.usefixtures("stand_in_stages")
def test_a_server_that_never_answers_costs_one_warning(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        result = run_cli(
            "run", f"tracking.uri=http://127.0.0.1:{mute.getsockname()[1]}", tracking="local"
        )
    assert result["code"] == 0 and result["err"].count("the run continues") == 1, result["err"]


@pytest.mark.usefixtures("stand_in_stages")
@pytest.mark.parametrize("arguments", [["run"], ["refresh", "-m", "tokenizer.vocab_size=300,400"]])
def test_what_could_not_be_sent_is_sent_by_the_next_run(
    arguments: list[str], run_cli: RunCli, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place, uri = tmp_path / "shared", f"sqlite:///{tmp_path / 'shared'}/mlflow.db"
    place.touch()  # where the folder of the database should be
    result = run_cli(*arguments, f"tracking.uri={uri}", tracking="local")
    assert result["code"] == 0 and "does not take this run" in result["err"]
    place.unlink()
    place.mkdir()
    assert run_cli("refresh", "only=ingest", f"tracking.uri={uri}", tracking="local")["code"] == 0
    tracked = Tracked(uri, "textmill")
    assert {run.info.status for run in tracked.runs()} == {"FINISHED"}
    assert list((tmp_path / "state/mlflow/unsent").glob("*/*")) == []
    if arguments == ["run"]:
        (parent,) = [run for run in tracked.parents() if run.data.tags["target"] == "report"]
        assert parent.data.metrics["val_bpb"] == 1.4 and len(tracked.children(parent)) == len(
            STAGES
        )
    else:
        (sweep,) = [run for run in tracked.parents() if "flow" not in run.data.tags]
        assert (
            sum(
                run.data.tags.get("mlflow.parentRunId") == sweep.info.run_id
                for run in tracked.parents()
            )
            == 2
        )


@pytest.mark.usefixtures("stand_in_stages")
def test_a_run_that_was_killed_is_ended_by_the_next(
    tracked: Tracked, overrides: list[str], run_cli: RunCli, places: list[str]
) -> None:
    code = (
        "import os; from pathlib import Path; from flows.compose import compose; from"
        " flows.tracking.runs import Tracker;config ="
        f" compose({[*overrides, *places]});tracker = Tracker(config.tracking, config.state,"
        " 'killed');tracker.begin('killed', {}, '2026-01-01T00:00:00+00:00', {}, {});"
        " os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert [run.info.status for run in tracked.runs()] == ["RUNNING"]
    run_cli("refresh", "only=ingest", *overrides, tracking="local")
    (killed,) = [run for run in tracked.runs() if run.data.tags["textmill.run_id"] == "killed"]
    assert killed.info.status == "KILLED" and "died" in killed.data.tags["error"]


@pytest.mark.usefixtures("stand_in_stages")
def test_a_run_that_somebody_deletes_in_mlflow_goes_on(
    tracked: Tracked, overrides: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deletes(*arguments: Any) -> Any:
        tracked.client.delete_run(tracked.parents()[0].info.run_id)
        return quality(*arguments)

    quality = stand_ins.quality
    monkeypatch.setattr(stand_ins, "quality", deletes)
    result = run_cli("run", *overrides, tracking="local")
    assert (
        result["code"] == 0
        and "refuses a part of this run" in result["err"]
        and "Traceback" not in result["err"]
    )


@pytest.mark.usefixtures("stand_in_stages")
def test_a_state_folder_that_cannot_be_written_costs_one_warning(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/mlflow").touch()
    result = run_cli("refresh", tracking="local")
    assert result["code"] == 0 and result["err"].count("untracked") == 1, result["err"]


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in_stages")
def test_a_run_whose_server_is_killed_has_all_its_metrics_once_it_is_back(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{tmp_path / 'served.db'}",
    ]
    command += [
        "--workers",
        "1",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--artifacts-destination",
        str(tmp_path / "kept"),
    ]

    @contextmanager
    def server() -> Iterator[Callable[[], None]]:
        env = {**os.environ, **ENVIRONMENT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        process = start_detached(command, env, tmp_path, tmp_path / "log")
        try:
            until = time.monotonic() + 120
            while not answers(f"{uri}/health") and time.monotonic() < until:
                time.sleep(0.2)
            yield lambda: stop(descendants([process.pid]), 0.0)
        finally:
            stop(descendants([process.pid]), 0.0)

    def kills(*arguments: Any) -> Any:
        kill()
        return quality(*arguments)

    quality = stand_ins.quality
    with server() as kill:
        monkeypatch.setattr(stand_ins, "quality", kills)
        result = run_cli("run", f"tracking.uri={uri}", tracking="local")
        assert result["code"] == 0 and result["err"].count("the run continues") == 1, result["err"]
    monkeypatch.setattr(stand_ins, "quality", quality)
    with server():
        assert (
            run_cli("refresh", "only=ingest", f"tracking.uri={uri}", tracking="local")["code"] == 0
        )
        tracked = Tracked(uri, "textmill")
        (parent,) = [run for run in tracked.parents() if run.data.tags["target"] == "report"]
        children = tracked.children(parent)
        assert parent.info.status == "FINISHED" and parent.data.metrics["val_bpb"] == 1.4
        assert len(children) == len(STAGES) and {
            child.info.status for child in children.values()
        } == {"FINISHED"}
        history = tracked.client.get_metric_history(children["train"].info.run_id, "train_loss")
        assert [(m.step, m.value) for m in history] == [(1, 3.0), (2, 1.5), (3, 1.0)]


def test_configured_server_wins_over_environment_and_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = compose().tracking
    assert config.resolve_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert config.resolve_uri(tmp_path) == "http://127.0.0.1:5000"
    assert (
        compose(["tracking.uri=http://127.0.0.1:6000"]).tracking.resolve_uri(tmp_path)
        == "http://127.0.0.1:6000"
    )


def test_the_page_of_runs_is_that_of_trainings_in_the_experiment(tmp_path: Path) -> None:
    log = MlflowLog(default_uri(tmp_path), "textmill", tmp_path)
    page = log.runs_page("http://127.0.0.1:5000/")
    assert (
        page
        == f"http://127.0.0.1:5000/#/experiments/{log.experiment_id}/runs?workflowType=machine_learning"
    )


def test_mlflow_takes_any_names_and_texts(database: str, tracked: Tracked, tmp_path: Path) -> None:
    log = MlflowLog(database, tracked.experiment, tmp_path)
    run_id = log.start(
        "n" * 3000, {"overrides": "o" * 9000, "empty": ""}, "2026-01-01T00:00:00+00:00"
    )
    configured = {f"{i}.🎓@{'k' * 300}": "🎓" * 6000 for i in range(150)}
    log.params(run_id, configured)
    log.metrics(
        run_id,
        numbers({"web.a": 1, "web": {"a": 2}, "../x": 3, "deb:golang-1.19-src": 4}),
        "2026-01-01T00:00:00+00:00",
    )
    log.tags(run_id, {"error": "e" * 9000})
    (run,) = tracked.runs()
    assert len(run.data.params) == 150
    assert (
        run.data.metrics["web.a"] == 1
        and run.data.metrics["web/a"] == 2
        and run.data.metrics["deb:golang-1.19-src"] == 4
    )
    assert len(run.data.metrics) == 4

"""No run depends on MLflow: what could not be sent is sent by the next run."""

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
from flows.tracking import dead_runs
from flows.tracking.dead_runs import end_dead_runs
from flows.tracking.mlflow_log import ENVIRONMENT
from tasks.runtime.code import ROOT
from tasks.runtime.graph import STAGES
from tests.flows.conftest import RunCli
from tests.support import stand_ins
from tests.support.tracked_runs import Tracked


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
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"me:hidden@127.0.0.1:{mute.getsockname()[1]}/runs"
        result = run_cli("run", f"tracking.uri=mysql://{address}", tracking="local")
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
        ids = [run.data.tags.get("textmill.sweep_id") for run in tracked.parents()]
        assert len(ids) == 4 and len({*ids} - {None}) == 1 and ids.count(None) == 1


@pytest.mark.usefixtures("stand_in_stages")
def test_a_run_that_was_killed_is_ended_as_failed_with_what_it_measured(
    tracked: Tracked, overrides: list[str], places: list[str], tmp_path: Path
) -> None:
    code = (
        "import os; from flows.compose import compose; from flows.tracking import runs, shipping\n"
        # MLflow alone takes longer to import on a busy machine than a run waits for it.
        "shipping.FIRST_WAIT_S = 300.0\n"
        f"config = compose({[*overrides, *places]})\n"
        "tracker = runs.Tracker(config.tracking, config.state, 'killed')\n"
        "tracker.begin('killed', {}, '2026-01-01T00:00:00+00:00', {}, {})\n"
        "from pathlib import Path; from tasks.runtime.store import Node\n"
        "from tests.support.growing_rows import write\n"
        f"out = Path('{tmp_path}/out'); write(Path('{tmp_path}/out.work/run-a'), 1, 3)\n"
        "tracker.stage_started(Node('train', 'k', 'p', {}, {}), out)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == -9
    assert {run.info.status for run in tracked.runs()} == {"RUNNING"}
    config = compose([*overrides, *places])
    dead = config.state, config.tracking.experiment, config.tracking.uri
    assert [end_dead_runs(*dead) for _ in range(2)] == [1, 0]
    (killed,), (train,) = tracked.parents(), tracked.children(tracked.parents()[0]).values()
    for run in (killed, train):
        assert run.info.status == "FAILED" and "ended unexpectedly" in run.data.tags["error"]
    history = tracked.client.get_metric_history(train.info.run_id, "train_loss")
    assert [m.step for m in history] == [1, 2, 3], "what it measured is there"


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


def test_a_busy_server_is_asked_again_how_dead_runs_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = iter([OSError("database is locked"), OSError("connection refused"), None])
    waits: list[float] = []

    def ask(*_: object) -> int:
        if error := next(answers):
            raise error
        return 1

    monkeypatch.setattr(dead_runs, "end_dead_runs", ask)
    monkeypatch.setattr(dead_runs.time, "sleep", waits.append)
    dead_runs.main(tmp_path, "textmill")
    assert waits == [dead_runs.RETRY_AFTER_S] * 2 and not list(answers)

"""MLflow and Prefect keep their records on a PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.services import local
from tasks.runtime.graph import STAGES
from tests.flows.conftest import RunCli
from tests.support.postgres import PASSWORD, postgres_server, server_programs
from tests.support.tracked_runs import Tracked

pytestmark = pytest.mark.skipif(server_programs() is None, reason="no PostgreSQL server programs")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server("mlflow", "prefect") as address:
        yield address


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in_stages")
def test_runs_are_tracked_on_postgres_and_its_password_is_shown_nowhere(
    server: str, run_cli: RunCli, tmp_path: Path
) -> None:
    uri = f"postgresql+psycopg://{server}/mlflow"
    result = run_cli("run", f"tracking.uri='{uri}'", tracking="local")
    assert result["code"] == 0 and "warn" not in result["err"].lower(), result["err"]
    tracked = Tracked(uri, "textmill")
    (parent,) = tracked.parents()
    assert parent.info.status == "FINISHED" and parent.data.metrics["val_bpb"] == 1.4
    children = tracked.children(parent)
    assert len(children) == len(STAGES)
    history = tracked.client.get_metric_history(children["train"].info.run_id, "train_loss")
    assert [point.step for point in history] == [1, 2, 3]
    assert PASSWORD not in result["out"] + result["err"]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or PASSWORD.encode() not in file.read_bytes(), file


@pytest.mark.slow
def test_the_local_prefect_server_runs_on_postgres(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql+asyncpg://{server}/prefect"
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", url)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    state = tmp_path / "state"
    said: list[str] = []
    try:
        address = local.up(state, said.append)
        assert local.answers(f"{address}/health")
        assert local.answers(f"{address}/deployments/name/pipeline/local", local.auth_string(state))
    finally:
        local.down(state)
    assert not (state / "prefect/prefect.db").exists(), "nothing is kept in SQLite"
    assert PASSWORD not in " ".join(said) and os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    for file in (state / "logs").rglob("*.log"):
        assert PASSWORD.encode() not in file.read_bytes(), file

"""Each local service has the secrets that it needs, and no others."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from flows.services.access import auth_string, make_auth_string, make_private
from flows.services.environments import (
    mlflow_environment,
    server_environment,
    worker_environment,
)
from flows.services.local import down, mlflow_ui, up
from flows.services.processes import descendants

OF_SOURCES = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-9f2c",
    "HF_TOKEN": "planted-hub-9f2c",
    "MLFLOW_TRACKING_PASSWORD": "planted-tracking-9f2c",
    "PII_HASH": "planted-pii-9f2c",  # called like nothing secret
    "https_proxy": "http://me:planted-proxy-9f2c@proxy:3128",
}
OF_THE_SERVER = {"PREFECT_SERVER_DATABASE_PASSWORD": "planted-database-9f2c"}
OF_A_SERVER_ELSEWHERE = {
    "PREFECT_API_KEY": "planted-cloud-9f2c",
    "PREFECT_CLIENT_CUSTOM_HEADERS": '{"X-Token": "planted-header-9f2c"}',
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**OF_SOURCES, **OF_THE_SERVER, **OF_A_SERVER_ELSEWHERE}.items():
        monkeypatch.setenv(name, value)


def secrets_of(environment: Mapping[str, str]) -> set[str]:
    return {name for name, value in environment.items() if "9f2c" in value}


@pytest.mark.usefixtures("planted")
def test_each_service_gets_its_own_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(tmp_path)
    make_auth_string(tmp_path)
    server = server_environment(tmp_path, 1)
    assert secrets_of(server) == {*OF_THE_SERVER}
    assert server["PREFECT_SERVER_API_AUTH_STRING"] == auth_string(tmp_path)
    assert secrets_of(worker_environment(tmp_path, "http://127.0.0.1:1/api")) == {*OF_SOURCES}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database := "postgresql://me:mine-9f2c@db/runs")
    ui = mlflow_environment(tmp_path, database)
    assert secrets_of(ui) == {"MLFLOW_TRACKING_URI", "MLFLOW_BACKEND_STORE_URI"}
    assert not [name for name in ui if name.startswith("PREFECT_")]


@pytest.mark.usefixtures("planted")
def test_services_keep_settings_that_are_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_auth_string(tmp_path)
    harmless = {
        "MLFLOW_LOGGING_LEVEL": "DEBUG",
        "PREFECT_LOGGING_LEVEL": "DEBUG",
        "SSL_CERT_FILE": "/etc/certificates",
        "no_proxy": "127.0.0.1",
    }
    for name, value in harmless.items():
        monkeypatch.setenv(name, value)
    server = server_environment(tmp_path, 1)
    ui = mlflow_environment(tmp_path, "sqlite:///x")
    assert {name for name, _ in harmless.items() - server.items()} == {"MLFLOW_LOGGING_LEVEL"}
    assert {name for name, _ in harmless.items() - ui.items()} == {"PREFECT_LOGGING_LEVEL"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no environments are shown")
@pytest.mark.usefixtures("planted")
def test_running_services_show_no_secret_that_they_do_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OF_THE_SERVER:
        monkeypatch.delenv(name)  # there is no such database
    state = tmp_path / "state"
    try:
        up(state, lambda line: None)
        mlflow_ui(state)
        time.sleep(2)  # for what they start themselves
        known = json.loads((state / "services.json").read_text())
        shown = {
            name: [environment_of(pid) for pid in descendants([known[name]["pid"]])]
            for name in ("server", "worker", "mlflow")
        }
    finally:
        down(state)
    assert len(shown["mlflow"]) > 1, "it starts its server as a process"
    for name in ("server", "mlflow"):
        assert [secrets_of(process) for process in shown[name] if secrets_of(process)] == []
    assert [secrets_of(process) for process in shown["worker"]] == [{*OF_SOURCES}]


def environment_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text("utf-8", "replace").split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)

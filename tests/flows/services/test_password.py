"""The password of the services is made once, kept from others, and sent to our own server only."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from flows.services.access import answers, auth_file, auth_string, make_auth_string
from flows.services.environments import client_environment
from flows.services.local import ServiceError, up
from flows.services.processes import descendants, free_port, start_time, stop
from tasks.runtime.artifact import write_json
from tests.flows.conftest import RunCli
from tests.support.local_services import UNGUARDED, start_unguarded


def test_flow_runs_in_progress_are_not_stopped_for_a_password(tmp_path: Path) -> None:
    port = free_port()
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    family = f"import subprocess, sys, time; subprocess.Popen({child}); time.sleep(60)"
    known = {
        "server": start_unguarded(tmp_path, "server", [UNGUARDED, str(port)], port),
        "worker": start_unguarded(tmp_path, "worker", [family]),
    }
    write_json(tmp_path / "services.json", known)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if (
                answers(f"http://127.0.0.1:{port}/api/health")
                and len(descendants([known["worker"]["pid"]])) > 1
            ):
                break
            time.sleep(0.1)
        with pytest.raises(
            ServiceError, match="flow runs are in progress; `textmill down` stops them"
        ):
            up(tmp_path, lambda line: None)
        assert all(start_time(entry["pid"]) for entry in known.values())
    finally:
        stop(descendants(entry["pid"] for entry in known.values()), 1.0)


def test_a_password_is_made_once_and_is_for_its_owner(tmp_path: Path) -> None:
    assert make_auth_string(tmp_path) and not make_auth_string(tmp_path)
    assert stat.S_IMODE(auth_file(tmp_path).stat().st_mode) == 0o600
    user, _, password = auth_string(tmp_path).partition(":")
    assert user == "textmill" and len(password) >= 40
    make_auth_string(tmp_path / "other")
    assert auth_string(tmp_path / "other") != auth_string(tmp_path)
    assert client_environment(tmp_path, "http://x/api")["PREFECT_API_AUTH_STRING"] == auth_string(
        tmp_path
    )


def test_a_configured_server_gets_nothing_of_ours(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.services.local import ensure_server

    state, port = tmp_path / "state", free_port()
    state.mkdir()
    make_auth_string(state)
    theirs = start_unguarded(tmp_path, "theirs", [UNGUARDED, str(port)], port)
    try:
        url = f"http://127.0.0.1:{port}/api"
        until = time.monotonic() + 30
        while not answers(f"{url}/health") and time.monotonic() < until:
            time.sleep(0.1)
        write_json(
            state / "services.json",
            {"server": {"pid": os.getpid(), "started": start_time(os.getpid()), "port": 1}},
        )
        monkeypatch.setenv("PREFECT_API_URL", url)
        out = run_cli("env")["out"]
        assert "PREFECT_API_URL" not in out and "AUTH_STRING" not in out
        assert (
            ensure_server(state, lambda line: None) == url
            and "PREFECT_API_AUTH_STRING" not in os.environ
        )
    finally:
        stop([theirs["pid"]], 1.0)

"""Services are started once, found again, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from flows.services import local as services
from flows.services import processes
from flows.services.access import answers, basic_auth
from flows.services.environments import client_environment, environment
from flows.services.local import down, server_url, up
from flows.services.processes import (
    descendants,
    free_port,
    is_running,
    left_behind,
    start_detached,
    start_time,
    stop,
)
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT
from tests.flows.conftest import RunCli

FAMILY = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time;"
    " time.sleep(60)']); time.sleep(60)"
)


def test_process_is_known_by_id_and_start_time() -> None:
    own = start_time(os.getpid())
    assert is_running(os.getpid(), own)
    assert not is_running(os.getpid(), "another time"), "the same id, used again"
    assert start_time(2**22 + 1) is None and not is_running(2**22 + 1, None)


def test_a_process_that_was_killed_does_not_run_while_it_ends() -> None:
    large = "import time; held = bytearray(200_000_000); print(flush=True); time.sleep(60)"
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", large], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        started = start_time(process.pid)
        assert is_running(process.pid, started)
        process.kill()
        assert not is_running(process.pid, started)
        process.wait()
        process.stdout.close()


def test_detached_process_is_stopped_with_its_children(tmp_path: Path) -> None:
    process = start_detached([sys.executable, "-c", FAMILY], os.environ, tmp_path, tmp_path / "log")
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    until = time.monotonic() + 30
    while len(family := descendants([process.pid])) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert len(family) == 2
    stop(family, 5.0)
    assert [pid for pid in family if start_time(pid)] == []


def test_what_a_killed_service_left_behind_is_stopped(tmp_path: Path) -> None:
    process = start_detached([sys.executable, "-c", FAMILY], os.environ, tmp_path, tmp_path / "log")
    write_json(
        tmp_path / "services.json",
        {"mlflow": {"pid": process.pid, "started": start_time(process.pid), "port": 1}},
    )
    until = time.monotonic() + 30
    while len(family := descendants([process.pid])) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert left_behind(process.pid) == [], "its leader is alive"
    process.kill()
    process.wait()
    assert left_behind(process.pid) == family[1:]
    assert down(tmp_path) == []
    assert [pid for pid in family if start_time(pid)] == []


def start_until_ready(code: str, folder: Path) -> subprocess.Popen[bytes]:
    """A detached process whose code makes a file `ready` where it runs."""
    process = start_detached([sys.executable, "-c", code], os.environ, folder, folder / "log")
    until = time.monotonic() + 30
    while not (folder / "ready").exists():
        assert time.monotonic() < until, (folder / "log").read_text("utf-8")
        time.sleep(0.05)
    return process


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time, pathlib; signal.signal(15, signal.SIG_IGN);"
        " pathlib.Path('ready').touch(); time.sleep(60)"
    )
    process = start_until_ready(code, tmp_path)
    stop([process.pid], 0.3)
    assert start_time(process.pid) is None


def test_processes_that_are_on_their_way_out_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_is_ending", lambda pid: True)
    code = (
        "import pathlib, signal, sys, time;"
        " signal.signal(15, lambda *_: (time.sleep(0.5), sys.exit()));"
        " pathlib.Path('ready').touch(); time.sleep(60)"
    )
    process = start_until_ready(code, tmp_path)
    stop([process.pid], 10.0)
    assert start_time(process.pid) is None


def test_detached_process_gets_the_default_interrupt(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
        start_detached([sys.executable, "-c", code], os.environ, tmp_path, tmp_path / "log").wait(
            30
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "log").read_text().strip() == "False"


KEEPER = """
import pathlib, sys
from flows.services.local import _stop_worker
from flows.services.registry import Registry
state = pathlib.Path(sys.argv[1])
_stop_worker(Registry(state))
(state / "outlived").touch()
"""


def test_worker_is_stopped_by_its_own_keeper_which_outlives_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; time.sleep(0.5);"
        " subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True);"
        " time.sleep(60)"
    )
    command = [sys.executable, "-c", code, "-c", KEEPER, str(tmp_path)]
    worker = start_detached(command, os.environ, ROOT, tmp_path / "log")
    write_json(
        tmp_path / "services.json",
        {"worker": {"pid": worker.pid, "started": start_time(worker.pid)}},
    )
    until = time.monotonic() + 30
    while not (tmp_path / "outlived").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert (tmp_path / "outlived").exists(), (tmp_path / "log").read_text()
    assert worker.wait(5) and start_time(worker.pid) is None


def test_port_is_kept_where_it_is_free() -> None:
    import socket

    port = free_port()
    assert free_port(port) == port
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert free_port(port) != port


def test_port_is_none_that_the_system_gives_to_clients() -> None:
    assert all(free_port() < 32768 for _ in range(20))


def test_down_stops_nothing_it_did_not_start(tmp_path: Path) -> None:
    assert down(tmp_path) == []
    # A record of a process that has ended, whose id now belongs to somebody else: this test.
    write_json(
        tmp_path / "services.json", {"server": {"pid": os.getpid(), "started": "1", "port": 1}}
    )
    assert down(tmp_path) == [] and server_url(tmp_path) is None
    assert down(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"7", b"null", b"\xff"])
def test_services_that_cannot_be_read_are_one_line(
    content: bytes, run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "services.json").write_bytes(content)
    result = run_cli("down")
    assert (
        result["code"] == 2
        and "services.json is not readable" in result["err"]
        and result["err"].count("\n") == 1
    )


def test_env_gives_lines_a_shell_takes(run_cli: RunCli, tmp_path: Path) -> None:
    lines = run_cli("env")["out"].splitlines()
    values = dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)
    assert values["PREFECT_HOME"] == str(tmp_path / "state" / "prefect"), (
        "nothing is kept in the home directory"
    )
    assert (
        values["DO_NOT_TRACK"] == "true"
        and values["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "false"
    )


@pytest.mark.slow
def test_two_ups_start_one_server_and_down_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    said: list[str] = []
    urls: list[str] = []
    threads = [
        threading.Thread(target=lambda: urls.append(up(tmp_path, said.append))) for _ in range(2)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(urls) == 2 and len(set(urls)) == 1 and len(said) == 1
        assert answers(f"{urls[0]}/health") and urls[0].startswith("http://127.0.0.1:")
        assert up(tmp_path, said.append) == urls[0] == server_url(tmp_path) and len(said) == 1
        env = {**os.environ, **client_environment(tmp_path, urls[0])}
        command = [sys.executable, "-m", "prefect", "deployment", "ls"]
        listed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        assert "pipeline/local" in listed and "refresh/nightly" in listed
    finally:
        stopped = down(tmp_path)
    assert stopped == ["worker", "server"]
    assert not answers(f"{urls[0]}/health") and down(tmp_path) == []
    assert up(tmp_path, said.append) == urls[0], "the port is remembered"
    assert down(tmp_path) == ["worker", "server"]


@pytest.mark.slow
def test_what_was_set_through_prefect_outlives_an_edit_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    clone, state = tmp_path / "clone", tmp_path / "state"
    clone.mkdir()
    for name in ("flows", "tasks", "llm_core", "conf"):
        (clone / name).symlink_to(services.ROOT / name)
    text = (services.ROOT / "prefect.yaml").read_text("utf-8")
    file = clone / "prefect.yaml"
    file.write_text(text)
    monkeypatch.setattr(services, "ROOT", clone)
    said: list[str] = []
    env = {**os.environ, **environment(state)}

    def prefect(*arguments: str) -> str:
        command = [sys.executable, "-m", "prefect", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    def nightly() -> Any:
        request = urllib.request.Request(
            f"{env['PREFECT_API_URL']}/deployments/name/refresh/nightly"
        )
        request.add_header("Authorization", basic_auth(env["PREFECT_API_AUTH_STRING"]))
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    try:
        env |= client_environment(state, up(state, said.append))
        del said[:]
        prefect(
            "deployment", "schedule", "resume", "refresh/nightly", nightly()["schedules"][0]["id"]
        )
        prefect(
            "deployment", "schedule", "create", "refresh/nightly", "--cron", "0 5 * * 0", "--active"
        )
        prefect("work-pool", "set-concurrency-limit", "textmill", "3")
        file.write_text(text.replace("New input to token shards", "New documents to token shards"))
        up(state, said.append)
        (line,) = said
        assert line.startswith("refresh/nightly: description: ") and "New documents" in line
        schedules = {
            schedule["schedule"]["cron"]: schedule["active"] for schedule in nightly()["schedules"]
        }
        assert schedules == {"0 3 * * *": True, "0 5 * * 0": True}
        assert '"concurrency_limit": 3' in prefect("work-pool", "inspect", "textmill", "-o", "json")

        del said[:]
        file.write_text(text.replace('cron: "0 3 * * *"', 'cron: "30 3 * * *"'))
        up(state, said.append)
        schedules = {
            schedule["schedule"]["cron"]: schedule["active"] for schedule in nightly()["schedules"]
        }
        assert schedules == {
            "30 3 * * *": True,
            "0 5 * * 0": True,
        }, "the file changed one field, Prefect another"
        assert any(
            line.startswith("refresh/nightly: schedules.nightly.schedule.cron: ") for line in said
        ), said
        up(state, said.append)
    finally:
        down(state)

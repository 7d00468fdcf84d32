"""A service whose state folder is removed, or in whose place another one is, ends by itself."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from shutil import rmtree

import pytest

from flows.services.local import up
from flows.services.processes import descendants, start_detached, start_time, stop
from flows.services.registry import EVERY_S, Registry
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT
from tests.support.deployed_runs import wait_for

SERVICE = """
import pathlib, subprocess, sys, time
from flows.services.registry import end_if_dropped
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
while True:
    end_if_dropped(pathlib.Path(sys.argv[1]), "worker", 1.0)
    time.sleep(0.1)
"""


SERVER = """
import pathlib, subprocess, sys
from flows.services import prefect_server
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
prefect_server.EVERY_S = 0.1
prefect_server._end_with_state(pathlib.Path(sys.argv[1]))
"""


def service(place: Path, code: str = SERVICE, name: str = "worker") -> list[int]:
    """A service of a state folder and what it has started."""
    state = place / "state"
    command = [sys.executable, "-c", code, str(state)]
    # The folder has it before it looks, which Python needs longer for.
    pid = start_detached(command, os.environ, ROOT, place / "log").pid
    write_json(state / "services.json", {name: {"pid": pid, "started": start_time(pid)}})
    wait_for(lambda: len(descendants([pid])) > 1, 30)
    return descendants([pid])


def test_service_ends_with_what_it_started_when_its_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    pids = service(tmp_path)
    try:
        time.sleep(0.5)
        assert all(map(start_time, pids)), "as long as it is the one"
        rmtree(tmp_path / "state")
        wait_for(lambda: not any(map(start_time, pids)), 20, "its end")
    finally:
        stop(pids, 0.0)


def test_service_ends_when_another_one_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    pids = service(tmp_path)
    try:
        Registry(tmp_path / "state").set("worker", {"pid": os.getpid(), "started": "1"})
        wait_for(lambda: not any(map(start_time, pids)), 20, "its end")
    finally:
        stop(pids, 0.0)


def test_server_waits_until_its_folder_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    pids = service(tmp_path, SERVER, "server")
    loop = tmp_path / "state" / "loop"
    loop.symlink_to("services.json")
    try:
        loop.replace(tmp_path / "state" / "services.json")  # in one move: it is never missing
        time.sleep(1.0)
        assert all(map(start_time, pids)), "what cannot be read may be its own"
        rmtree(tmp_path / "state")
        wait_for(lambda: not any(map(start_time, pids)), 20, "its end")
    finally:
        stop(pids, 0.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_server_and_worker_end_with_their_folder_and_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    state = tmp_path / "state"
    up(state, [].append)
    services = Registry(state)
    pids = [int(services.get(name)["pid"]) for name in ("server", "worker")]
    try:
        rmtree(state)
        wait_for(lambda: not any(map(start_time, pids)), 6 * EVERY_S, "their end")
        assert not (state / "services.json").exists(), "no server was started in their place"
    finally:
        stop(descendants(pids), 5.0)

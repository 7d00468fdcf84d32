"""Runs the local worker: Prefect's own, and beside it a keeper that looks after what runs here.

Every `EVERY_S` the keeper settles runs that have died (`flows.services.dead_runs`), leaves one of
several late nights (`flows.services.late_runs`), and starts the server again where it has died. It
is a thread of the worker's process, so it ends with it, and flow runs end with both: they find the
worker's process id in `local.WORKER_VARIABLE`. A worker whose state folder is gone ends.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from flows.console import say, set_up_console, warn
from flows.services import local
from flows.services.dead_runs import Server, settle, settle_taken
from flows.services.late_runs import cancel_superseded
from flows.services.prefect_api import PrefectApi
from flows.services.processes import start_detached
from flows.services.registry import EVERY_S, end_if_dropped
from llm_core.printing import one_line
from tasks.runtime.code import ROOT


def main(pool: str, state: Path) -> None:
    os.environ[local.WORKER_VARIABLE] = str(os.getpid())
    os.environ[local.STATE_VARIABLE] = str(state.resolve())
    threading.Thread(target=_keep, args=(state,), name="keeper", daemon=True).start()
    options = ["--pool", pool, "--type", "process", "--name", "local", "--install-policy", "never"]
    sys.argv = ["prefect", "worker", "start", *options]
    # In the main thread, which Prefect's signal handlers need.
    runpy.run_module("prefect", run_name="__main__")


def _keep(state: Path) -> None:
    set_up_console()
    started_at, pause = datetime.now(UTC), threading.Event()
    while not pause.wait(EVERY_S):
        try:
            end_if_dropped(state, "worker", local.FLOW_GRACE_S)
            look_after(state, started_at)
        except Exception as error:  # noqa: BLE001 - what fails now is tried again
            warn(f"keeper: {type(error).__name__}: {one_line(error)}")


def look_after(state: Path, worker_started_at: datetime) -> None:
    """One round of the keeper. Raises what keeps it from looking."""
    url = local.server_url(state)
    if url is None:
        say("keeper: the Prefect server has ended; starting it again")
        # Not in this process, which is started anew where the server's port is taken.
        command = [sys.executable, "-m", "flows.services.local", str(state)]
        start_detached(command, os.environ, ROOT, state / "logs" / "keeper.log").wait()
        return
    api = PrefectApi.local(state, url)
    for line in (*settle(state, Server(api)), *settle_taken(state, api, worker_started_at)):
        warn(f"keeper: {line}")
    for line in cancel_superseded(api):
        say(f"keeper: {line}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""Settles runs whose process has died: a dead run never holds up a living one.

What a process of this host announced in `<state>/live` and did not take back is proof, whatever a
server believes. Such a run becomes Crashed in Prefect, with its tasks, `died` in its record in the
store, and FAILED in MLflow, each with the reason. A flow run of the local worker that no process
announced, and that no process has in its environment, died before its first line. What a server
that is away cannot be told stays announced until it can.

Runs as a part of `textmill up`, at the start of a run, and all the time in the worker.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flows.live.announced import LiveRun, live_dir, read_live
from flows.services.prefect_api import (
    ACTIVE,
    ENDED,
    TAG,
    NotFound,
    PrefectApi,
    Refused,
    Unreachable,
    is_ours,
)
from flows.services.processes import proc_folders, start_detached
from llm_core.json_files import UnreadableJson, read_json
from llm_core.locks import lock_if_free
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT
from tasks.runtime.store import now

LOCAL = "local"
"""What a run announces as its server where it is that of its state folder."""
START_S = 120.0
"""A flow run that a worker took has announced itself after this time, or its process is gone."""
TASKS_LATE_S = 60.0
"""A server writes how tasks ended some time after their flow run."""
SAID = "finished work is kept; run it again to resume"


@dataclass(frozen=True)
class Server:
    """The Prefect server to be told."""

    api: PrefectApi
    name: str = LOCAL
    """As runs announce it."""


def settle(state: Path, server: Server | None) -> list[str]:
    """Settle every dead run of a state folder; one line for each. Does nothing while another
    process does it.

    server: None where none answers. Raises nothing that a server says or does not say.
    """
    if not (folder := live_dir(state)).exists() and server is None:
        return []
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_if_free(folder / "settle.lock") as free:
        if not free:
            return []
        dead = [run for run in read_live(state) if run.is_dead]
        return [line for run in dead if (line := _settle_announced(state, run, server))]


def _settle_announced(state: Path, run: LiveRun, server: Server | None) -> str | None:
    """What is said of a dead run; None where its server has to be waited for."""
    reason = _reason(run)
    if run.flow_run_id is not None:
        if server is None or server.name != run.server:
            return None
        try:
            _crash(server.api, run.flow_run_id, reason)
        except NotFound:  # the run was deleted there
            pass
        except (Unreachable, Refused):
            return None
    _end_record(run, reason)
    if run.tracking is not None:
        _end_tracked(state, run.tracking)
    run.file.unlink(missing_ok=True)
    return f"{run.name}: {reason}"


def _reason(run: LiveRun) -> str:
    where = f" during {run.stage}" if run.stage else ""
    return (
        f"process {run.process['pid']} on {run.process['host']} ended unexpectedly{where}; {SAID}"
    )


def _crash(api: PrefectApi, flow_run_id: str, reason: str) -> None:
    """A flow run and its tasks become Crashed, or Cancelled where somebody asked for that; one that
    has ended stays as it is. The server frees its slot."""
    state_type = api.ask("GET", f"/flow_runs/{flow_run_id}")["state_type"]
    if state_type in ACTIVE:
        ended = "CANCELLED" if state_type == "CANCELLING" else "CRASHED"
        api.set_state("flow_runs", flow_run_id, ended, reason)
    # One that waits for a retry or is suspended has no process: its task runs are all that died.
    for task in api.pages(
        "/task_runs/filter",
        flow_runs={"id": {"any_": [flow_run_id]}},
        task_runs={"state": {"type": {"any_": list(ACTIVE)}}},
    ):
        api.set_state("task_runs", task["id"], "CRASHED", reason)


def settle_taken(state: Path, api: PrefectApi, worker_started_at: datetime | None) -> Iterator[str]:
    """Settle flow runs that the worker of a state folder took and nobody works on; a line for each.

    worker_started_at: None where no worker is running, so that what it took will not begin. Raises
    Unreachable.
    """
    # Before the flow runs are listed: one that announces itself meanwhile has a process.
    claimed = {run.flow_run_id for run in read_live(state)}
    young = datetime.now(UTC) - timedelta(seconds=START_S)
    for run in list(api.flow_runs(ACTIVE)):
        if not is_ours(run) or not run.get("work_pool_name") or run["id"] in claimed:
            continue
        since = datetime.fromisoformat(run["state"]["timestamp"])
        starting = worker_started_at is not None and since > max(worker_started_at, young)
        if starting or _has_process(run["id"]):
            continue
        reason = f"its worker or its process ended before it began; {SAID}"
        _crash(api, run["id"], reason)
        yield f"{run['name']}: {reason}"
    _settle_tasks(api)


def _settle_tasks(api: PrefectApi) -> None:
    """Task runs that outlive their flow run: a process that is killed cannot end them."""
    late = (datetime.now(UTC) - timedelta(seconds=TASKS_LATE_S)).isoformat()
    ended = {
        "state": {"type": {"any_": list(ENDED)}},
        "end_time": {"before_": late},
        "tags": {"all_": [TAG]},
    }
    running = {"state": {"type": {"any_": list(ACTIVE)}}}
    for task in api.pages("/task_runs/filter", flow_runs=ended, task_runs=running):
        api.set_state("task_runs", task["id"], "CRASHED", "its flow run has ended without it")


def free_slots(api: PrefectApi) -> None:
    """Free the slots of deployments that no flow run holds: a server that died may have forgotten
    whose they were. Only while no worker takes runs."""
    for limit in api.ask("POST", "/v2/concurrency_limits/filter", {}):
        kind, _, deployment = limit["name"].partition(":")
        if kind != "deployment" or not limit["active_slots"]:
            continue
        held = api.ask(
            "POST",
            "/flow_runs/count",
            {
                "deployments": {"id": {"any_": [deployment]}},
                "flow_runs": {"state": {"type": {"any_": list(ACTIVE)}}},
            },
        )
        if held < limit["active_slots"]:
            api.ask("PATCH", f"/v2/concurrency_limits/{limit['id']}", {"active_slots": held})


def _end_record(run: LiveRun, reason: str) -> None:
    """Write into the record of a run that it died, where it has one and nobody has written its
    end."""
    if run.run_id is None:
        return
    path = Path(run.store) / ".runs" / f"{run.run_id}.json"
    with contextlib.suppress(FileNotFoundError, UnreadableJson):  # whoever reads it says so
        record = read_json(path)
        if record.get("outcome") == "running":
            write_json(path, record | {"outcome": "died", "error": reason, "finished_at": now()})


def _end_tracked(state: Path, tracking: dict[str, str | None]) -> None:
    """Let a process of its own tell MLflow, whose import takes longer than all else here."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "flows.tracking.dead_runs", str(tracking["state"])]
    command += [str(tracking["experiment"]), *filter(None, [tracking["uri"]])]
    env = {**os.environ, "PYTHONPATH": paths}
    start_detached(command, env, ROOT, state / "logs" / "dead_runs.log")


def _has_process(flow_run_id: str) -> bool:
    """Whether a process of this user was started for a flow run: Prefect names it in the
    environment. Linux only, else yes: it cannot be told."""
    if not Path("/proc/self/environ").exists():
        return True
    wanted = f"PREFECT__FLOW_RUN_ID={flow_run_id}".encode()
    for folder in proc_folders():
        with contextlib.suppress(OSError):  # of others, or ended meanwhile
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                return True
    return False

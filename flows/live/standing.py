"""Reads how all runs and services of a state folder stand: live, queued and dead runs, the next
scheduled ones.

Live and dead runs are known from files of this machine. So a shared store is not asked, and a
server only for what waits there, if one is running.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from flows.console import table
from flows.live.announced import LiveRun, read_live, run_name
from flows.progress import clock, stage_progress
from flows.records import RunRecord, read_records
from flows.run_config import RunConfig
from flows.services.local import server_url
from flows.services.prefect_api import PrefectApi, Refused, Unreachable, is_ours
from flows.services.registry import Registry
from llm_core.printing import shortened
from llm_core.secrets import mask_secrets
from tasks.runtime.store import Store

ANSWER_S = 1.5
"""Time a server has to answer."""
MAX_SHOWN_CHARS = 60
"""Of a run's name in the table; two lines of it."""
LAST_RECORDS = 20
"""Among so many of the last runs, those that died are shown."""


def read_standing(config: RunConfig) -> dict[str, Any]:
    """Plain values of everything that `textmill status` shows."""
    announced = read_live(config.state)
    dead = [_of_live(run) for run in announced if run.is_dead]
    known = {run["run_id"] for run in dead}
    records = read_records(Store(config.store))[:LAST_RECORDS]
    dead += [_of_record(r) for r in records if r.run_id not in known and _has_died(r, announced)]
    standing: dict[str, Any] = {
        "live": [_of_live(run) for run in announced if not run.is_dead],
        "dead": dead,
        "queued": [],
        "scheduled": [],
        "server": None,
        "services": _services(config),
    }
    api = _server(config)
    if api is None:
        return standing
    try:
        standing["queued"], standing["scheduled"] = _waiting(api)
        standing["server"] = mask_secrets(api.url.removesuffix("/api"))
    except (Unreachable, Refused) as error:
        standing["server_error"] = mask_secrets(str(error))
    return standing


def read_schedules(config: RunConfig) -> Iterator[dict[str, Any]]:
    """Schedules of textmill's deployments, with the next time of each; none without a server."""
    if (api := _server(config)) is None:
        return
    flows = {flow["id"]: flow["name"] for flow in api.pages("/flows/filter")}
    coming: dict[tuple[str, str], str] = {}
    scheduled = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    for run in api.pages("/flow_runs/filter", flow_runs=scheduled, sort="EXPECTED_START_TIME_ASC"):
        if run["auto_scheduled"]:
            said = str(run["parameters"].get("overrides"))
            coming.setdefault((run["deployment_id"], said), run["expected_start_time"])
    for deployment in filter(is_ours, api.pages("/deployments/filter")):
        for one in deployment["schedules"]:
            parameters = {**deployment["parameters"], **(one.get("parameters") or {})}
            overrides = parameters.get("overrides") or []
            when = one["schedule"]
            at = coming.get((deployment["id"], str(overrides)))
            later = _minute(at) if at else "not planned yet"
            yield {
                "deployment": f"{flows.get(deployment['flow_id'])}/{deployment['name']}",
                "name": str(one.get("slug") or ""),
                "when": str(when.get("cron") or when.get("rrule") or when.get("interval")),
                "next": later if one["active"] else "off",
                "overrides": " ".join(map(mask_secrets, overrides)),
            }


def describe_standing(standing: dict[str, Any]) -> str:
    """Tables and lines for a terminal."""
    blocks = []
    rows = [
        (
            "live",
            shortened(run["name"], MAX_SHOWN_CHARS),
            run["stage"] or "planning",
            run["progress"] or run["for"],
        )
        for run in standing["live"]
    ]
    rows += [
        ("queued", shortened(run["name"], MAX_SHOWN_CHARS), run["state"], run["since"])
        for run in standing["queued"]
    ]
    rows += [
        (
            "dead",
            shortened(run["name"], MAX_SHOWN_CHARS),
            run["stage"] or "",
            _minute(run["started_at"]),
        )
        for run in standing["dead"]
    ]
    rows += [
        ("next", shortened(run["name"], MAX_SHOWN_CHARS), "", run["at"])
        for run in standing["scheduled"]
    ]
    if rows:
        columns = ("", "run", "stage", "progress or time (UTC)")
        blocks.append(table(columns, rows, whole=columns[-1:]))
    else:
        blocks.append("no live, queued or dead runs")
    if standing["dead"]:
        blocks.append("dead: finished work is kept; the same command resumes it")
    services = ", ".join(name for name, alive in standing["services"].items() if alive)
    blocks.append(f"services  {services or 'none; textmill up starts them'}")
    if standing.get("server_error"):
        blocks.append(f"Prefect does not answer: {standing['server_error']}")
    elif standing["server"] is None:
        blocks.append("no Prefect server: queued and scheduled runs are not known")
    return "\n".join(blocks)


def _of_live(run: LiveRun) -> dict[str, Any]:
    progress = None if run.is_dead else stage_progress(run)
    return {
        "name": run.name,
        "run_id": run.run_id,
        "flow_run_id": run.flow_run_id,
        "stage": run.stage,
        "key": run.key,
        "progress": str(progress) if progress else None,
        "done": progress.done if progress else None,
        "total": progress.total if progress else None,
        "left_s": progress.left_s if progress else None,
        "started_at": run.started_at,
        "for": _ago(run.stage_started_at or run.started_at),
        "pid": run.process["pid"],
        "host": run.process["host"],
        "store": run.store,
    }


def _of_record(record: RunRecord) -> dict[str, Any]:
    return {
        "name": run_name(record.flow, record.overrides),
        "run_id": record.run_id,
        "stage": None,
        "started_at": record.started_at,
        "error": record.error or "its process ended unexpectedly",
    }


def _has_died(record: RunRecord, announced: list[LiveRun]) -> bool:
    if record.outcome == "died":
        return True
    silent = record.outcome == "running" and not record.is_alive()
    return silent and record.run_id not in {run.run_id for run in announced}


def _services(config: RunConfig) -> dict[str, bool]:
    services = Registry(config.state)
    return {name: services.alive(name) for name in ("server", "worker", "mlflow")}


def _server(config: RunConfig) -> PrefectApi | None:
    """The server that runs here would use, which may not answer."""
    configured, url = PrefectApi.configured(), server_url(config.state)
    api = configured
    if url is not None and (configured is None or configured.url == url):
        api = PrefectApi.local(config.state, url)
    return api and replace(api, limit_s=ANSWER_S)


def _waiting(api: PrefectApi) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs that wait for a worker or a slot, or are paused, and the next scheduled run of each
    deployment."""
    queued: list[dict[str, Any]] = []
    scheduled: dict[str, dict[str, Any]] = {}
    flows = {flow["id"]: flow["name"] for flow in api.pages("/flows/filter")}
    now = datetime.now(UTC).isoformat()
    chosen = {"state": {"type": {"any_": ["SCHEDULED", "PENDING", "PAUSED"]}}}
    runs = api.pages("/flow_runs/filter", flow_runs=chosen, sort="EXPECTED_START_TIME_ASC")
    for run in filter(is_ours, runs):
        at = run["expected_start_time"] or run["created"]
        # Until a scheduled one begins, Prefect has a name of its own for it.
        unnamed = run["auto_scheduled"] and not run["run_count"]
        asked = run["parameters"].get("overrides") or []
        name = run_name(str(flows.get(run["flow_id"])), asked) if unnamed else run["name"]
        named = {"id": run["id"], "name": name}
        if run["auto_scheduled"] and run["state_type"] == "SCHEDULED" and at > now:
            scheduled.setdefault(run["deployment_id"], named | {"at": _minute(at)})
        else:
            queued.append(named | {"state": run["state_name"], "since": _minute(at)})
    return queued, list(scheduled.values())


def _minute(instant: str) -> str:
    return f"{instant[:10]} {instant[11:16]}"


def _ago(instant: str) -> str:
    passed = datetime.now(UTC) - datetime.fromisoformat(instant)
    return f"for {clock(passed.total_seconds())}"

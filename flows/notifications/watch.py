"""Watches a run, and sends notices that it failed, is late or found drift, or that an earlier one
died.

A stop on request sends none. An earlier run died where its record says that it
is running and its process is gone, or that it died. The next run of the series sends that, once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.compose import RunConfig
from flows.notifications.channels import deliver
from flows.notifications.notices import Notice
from flows.records import RunRecord, read_records, runs_dir
from flows.refresh.series import recorded_series
from flows.stops import STOPS
from tasks.ingest.damagedfiles import TooManyFaults
from tasks.report.quantities import duration, plural
from tasks.runtime.store import Store

if TYPE_CHECKING:
    from flows.run import Run

DEATHS_SINCE = timedelta(days=7)
"""Older deaths are not reported, as in a store that was used before notices were set up."""


class Watch:
    """A run that is watched over; `run` is set as soon as it has a plan."""

    def __init__(self, config: RunConfig, flow: str) -> None:
        self._config, self._flow = config, flow
        self.run: Run | None = None

    def tell(self, event: str, cause: str) -> bool:
        """Deliver a notice, where that event is to be told; whether somebody has it, or nobody
        wants it."""
        notify = self._config.notify
        if event not in notify.on or not notify.channels:
            return True
        run_id = self.run.record.run_id if self.run else None
        failed = deliver(Notice(event, self._flow, cause, run_id, self._links()), notify)
        return len(failed) < len(notify.channels)

    def _links(self) -> dict[str, str]:
        run = self.run
        if run is None:
            return {"store": str(self._config.store.resolve())}
        links = {"record": str(runs_dir(run.store) / f"{run.record.run_id}.json")}
        if run.changes:
            links["changes"] = str(run.changes.page or run.changes.file)
        if run.report:
            links["report"] = str(run.report)
        if tracked := run.tracker.describe():
            links["mlflow"] = tracked
        flow_run, api = (
            run.record.process.get("prefect_flow_run_id"),
            os.environ.get("PREFECT_API_URL"),
        )
        if flow_run and api:
            links["prefect"] = f"{api.removesuffix('/api')}/runs/flow-run/{flow_run}"
        return links


@contextmanager
def watched(config: RunConfig, flow: str) -> Iterator[Watch]:
    """Tell what happens to the run in the block."""
    watch, notify = Watch(config, flow), config.notify
    if not notify.channels:
        yield watch
        return
    _tell_of_deaths(watch, config)
    timer = None
    if notify.late_after_s is not None:
        due = _due_at()
        waited_s = (datetime.now(UTC) - due).total_seconds()
        cause = f"not ended {duration(notify.late_after_s)} after {due:%Y-%m-%d %H:%M} UTC"
        left_s = max(0.0, notify.late_after_s - waited_s)
        timer = threading.Timer(left_s, watch.tell, ("late", cause))
        timer.daemon = True
        timer.start()
    try:
        yield watch
    except STOPS:
        raise
    except Exception as error:
        event = "quarantine" if isinstance(error, TooManyFaults) else "failed"
        watch.tell(event, f"{type(error).__name__}: {error}")
        raise
    else:
        if watch.run and watch.run.changes and watch.run.changes.drifts:
            watch.tell("drift", watch.run.changes.line)
    finally:
        if timer is not None:
            timer.cancel()


def _due_at() -> datetime:
    """When a flow run was scheduled for; now, outside of Prefect."""
    # Where Prefect is not loaded, nothing was scheduled, and loading it takes a second.
    flow_run: Any = sys.modules.get("prefect.runtime.flow_run")
    scheduled = flow_run.scheduled_start_time if flow_run is not None and flow_run.id else None
    return scheduled or datetime.now(UTC)


def _tell_of_deaths(watch: Watch, config: RunConfig) -> None:
    store = config.open_store()
    dead = [
        record
        for record in read_records(store)
        if record.series == recorded_series(config) and _has_died(record)
    ]
    untold = [record for record in dead if _begin_to_tell(store, record)]
    if not untold:
        return
    newest = untold[0]
    reason = newest.error or "killed, out of memory, or a power cut"
    cause = f"the process of run {newest.run_id} ended unexpectedly ({reason})"
    others = f"; so did {plural(len(untold) - 1, 'earlier run')}" if untold[1:] else ""
    if not watch.tell("died", f"{cause}{others}"):
        for record in untold:  # the next run tries again
            _told_file(store, record).unlink(missing_ok=True)


def _has_died(record: RunRecord) -> bool:
    begun = datetime.fromisoformat(record.started_at)
    if datetime.now(UTC) - begun > DEATHS_SINCE:
        return False
    return record.outcome == "died" or (record.outcome == "running" and not record.is_alive())


def _told_file(store: Store, record: RunRecord) -> Path:
    return runs_dir(store) / "told" / record.run_id


def _begin_to_tell(store: Store, record: RunRecord) -> bool:
    """Whether nobody tells or has told of this run; then this process does."""
    told = _told_file(store, record)
    told.parent.mkdir(parents=True, exist_ok=True)
    try:
        told.open("x").close()
    except FileExistsError:
        return False
    return True

"""Shows a run on its page in Prefect while it goes on, and obeys what is asked there.

A table of its stages and a progress bar are artifacts of the flow run, written by a thread of their
own, so that a server which is slow or away delays nothing. A run that is suspended on its page
stops as on SIGTERM, saves, and leaves its slot; resuming starts it again from the store. One that
no worker could start again is set back to Running, with the reason.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.console import in_and_out, warn
from flows.progress import stage_progress
from flows.run import Run
from flows.services.prefect_api import PrefectApi, Refused, Unreachable

EVERY_S = 5.0
_PAUSED = threading.Event()


@contextmanager
def watched(run: Run, api: PrefectApi, has_deployment: bool = False) -> Iterator[None]:
    """Keep the page of the flow run of `run` while the block runs.

    has_deployment: a worker can start the flow run again, so it can be suspended.
    """
    _PAUSED.clear()
    page = _Page(api, run, has_deployment)
    run.on_stage = page.wake
    page.start()
    try:
        yield
    finally:
        page.stop()


def was_paused() -> bool:
    """Whether the run of this process was stopped since its flow run was suspended."""
    return _PAUSED.is_set()


class _Page:
    def __init__(self, api: PrefectApi, run: Run, has_deployment: bool) -> None:
        self._api, self._run, self._has_deployment = api, run, has_deployment
        self._awake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="page", daemon=True)
        self._artifacts: dict[str, tuple[str, Any]] = {}
        """{kind: its id, and what it says}."""
        self._warned = False

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._awake.set()

    def stop(self) -> None:
        """Write how it ended, as far as the server takes it in time."""
        self._ended.set()
        self._awake.set()
        self._thread.join(2 * self._api.limit_s)

    def _work(self) -> None:
        while True:
            ended = self._ended.is_set()
            try:
                self._write()
                if not ended:
                    self._obey()
            except (Unreachable, Refused) as error:
                if not self._warned:
                    self._warned = True
                    warn(f"the page of this run in Prefect is not kept: {error}")
            if ended:
                return
            self._awake.wait(EVERY_S)
            self._awake.clear()

    def _obey(self) -> None:
        place = f"/flow_runs/{self._run.live.flow_run_id}"
        if self._api.ask("GET", place)["state_type"] != "PAUSED" or _PAUSED.is_set():
            return
        if not self._has_deployment:
            reason = (
                "a run in the foreground cannot be paused: stop it with Ctrl-C, and the same"
                " command resumes it"
            )
            run_id = str(self._run.live.flow_run_id)
            self._api.set_state("flow_runs", run_id, "RUNNING", reason)
            warn(reason)
            return
        _PAUSED.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def _write(self) -> None:
        rows = stage_rows(self._run)
        self._put(
            "table", f"{self._run.record.flow}-stages", json.dumps(rows), "Stages of this run"
        )
        done = [row["state"] in ("cached", "done", "not needed") for row in rows]
        progress = stage_progress(self._run.live)
        within = progress.done_frac if progress and not self._ended.is_set() else 0.0
        now = (
            f"{self._run.live.stage}: {progress}" if progress else self._run.live.stage or "cached"
        )
        percent = round(100 * min(1.0, (sum(done) + within) / len(done)), 1)
        self._put("progress", None, percent, now)

    def _put(self, kind: str, key: str | None, data: Any, description: str) -> None:
        artifact_id, known = self._artifacts.get(kind, (None, None))
        if known == (data, description):
            return
        content = {"data": data, "description": description}
        if artifact_id is None:
            named = {"key": key} if key else {}
            whole = {"type": kind, "flow_run_id": self._run.live.flow_run_id, **named, **content}
            artifact_id = self._api.ask("POST", "/artifacts/", whole)["id"]
        else:
            self._api.ask("PATCH", f"/artifacts/{artifact_id}", content)
        self._artifacts[kind] = (str(artifact_id), (data, description))


def stage_rows(run: Run) -> list[dict[str, str]]:
    """One row per stage of a run: how it stands, what went in and came out."""
    rows = []
    for step in run.plan.steps:
        name, outcome = step.node.stage, run.outcomes.get(step.node.stage)
        into, out, seconds = "", "", ""
        if outcome is not None:
            into, out = in_and_out(outcome.artifact)
            state, seconds = "cached" if outcome.cached else "done", f"{outcome.elapsed_s:.1f}"
        elif not step.needed:
            state = "not needed"
        elif run.live.stage == name:
            state = "running" if run.record.outcome == "running" else run.record.outcome
        else:
            state = "waiting" if step.runs else "cached"
        row = {"stage": name, "state": state, "in": into, "out": out, "seconds": seconds}
        rows.append(row | {"why": step.why, "key": step.node.key})
    return rows

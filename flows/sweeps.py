"""Runs the points of a sweep, and judges it by the files that its jobs leave.

A job may run in any process, so it writes how it ended to a file; a job without one has died.
Counts, exit code and the status in MLflow are those of these files. A job that fails costs its own
point; one that is stopped stops the sweep.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.compose import RunConfig
from flows.console import say, set_up_console, warn
from flows.exit_codes import exit_code
from flows.launch import job_number, launch
from flows.notifications.config import without_notify
from flows.stops import STOPS, Terminated, sigterm_raises
from flows.tracking.described import (
    SWEEP_VARIABLE,
    PointOfSweep,
    describe_points,
    name_of_sweep,
    tags_of_origin,
)
from flows.tracking.mlflow_log import SWEEP_TAG
from flows.tracking.runs import Tracker
from llm_core.config import ConfigError
from llm_core.printing import one_line, print_defect
from tasks.runtime.artifact import write_json
from tasks.runtime.store import now

FAILED = 1
"""Code of a job that left none: a defect, or a death."""
STOPPED = (os.EX_TEMPFAIL, 130, 143)
"""Codes of jobs that somebody stopped."""


@dataclass(frozen=True)
class SweepJob:
    """Runs one point and writes how it ended to `folder`. The launcher may pickle it."""

    flow: str
    points: Sequence[Sequence[str]]
    described: Sequence[PointOfSweep]
    folder: Path

    def __call__(self, _: Any) -> int:
        from flows.commands.runs import run_point  # which imports this module

        set_up_console()
        # A launcher's own way to start processes (joblib's is called loky) is unknown to the
        # processes that a stage starts.
        if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
            multiprocessing.set_start_method("spawn", force=True)
        number = job_number()
        point, file = self.points[number], self.folder / f"{number}.json"
        say(f"run {number + 1} of {len(self.points)}: {self.described[number].name}")
        # Written first, so that a job that dies differs from one that never began.
        write_json(file, {"code": None})
        os.environ[SWEEP_VARIABLE] = self.described[number].as_text()
        code = FAILED
        try:
            code = exit_code(lambda: run_point(self.flow, point))
        except Exception as error:  # noqa: BLE001 - a defect costs its own point
            print_defect(error)
        finally:
            os.environ.pop(SWEEP_VARIABLE, None)
            write_json(file, {"code": code})
        if code in STOPPED:
            raise Terminated(f"run {number + 1} was stopped")
        return code


@dataclass(frozen=True)
class SweepResult:
    """How the points ended: an exit code each, None for one that left none."""

    codes: list[int | None]
    num_begun: int

    @property
    def stopped(self) -> int | None:
        """The exit code of a job that was stopped."""
        return next((code for code in self.codes if code in STOPPED), None)

    @property
    def exit_code(self) -> int:
        return self.stopped or max(FAILED if code is None else code for code in self.codes)

    @property
    def outcome(self) -> str:
        return "interrupted" if self.stopped else "failed" if self.exit_code else "completed"

    def describe(self) -> str:
        silent = self.num_begun - sum(code is not None for code in self.codes)
        notes = [f"{silent} of them died without a result"] * bool(silent)
        notes += [f"{len(self.codes) - self.num_begun} not begun"] * (
            self.num_begun < len(self.codes)
        )
        failed = sum(code != 0 for code in self.codes)
        return f"{len(self.codes)} runs, {failed} failed" + "".join(f", {note}" for note in notes)


def run_sweep(
    flow: str,
    points: Sequence[Sequence[str]],
    hydra_overrides: Sequence[str],
    configs: Sequence[RunConfig],
) -> SweepResult:
    """Run each point of a sweep. configs: of the points; the first says where the sweep is kept
    and tracked."""
    config = configs[0]
    sweep_id = f"{now()[:10]}-{uuid.uuid4().hex[:8]}"
    folder = config.state.resolve() / "sweeps" / sweep_id
    folder.mkdir(parents=True)
    described = describe_points(sweep_id, points, [one.resolved() for one in configs])
    tracker, outcome = Tracker(config.tracking, config.state, sweep_id), "failed"
    # One MLflow run for the sweep, under our own id, by which its runs find it.
    title = name_of_sweep(flow, described)
    given = " ".join(dict.fromkeys(o for point in points for o in without_notify(point)))
    tags = {"overrides": given, SWEEP_TAG: sweep_id, **tags_of_origin(f"{flow} -m")}
    tracker.begin(title, tags, now(), {}, {}, swept=list(described[0].swept))
    try:
        with sigterm_raises():
            result = _launch(SweepJob(flow, points, described, folder), hydra_overrides)
        outcome = result.outcome
        say(f"sweep: {result.describe()}; MLflow: {tracker.describe() or 'not tracked'}")
    except STOPS:
        outcome = "interrupted"
        raise
    finally:
        tracker.finish(outcome)
    return result


def _launch(job: SweepJob, hydra_overrides: Sequence[str]) -> SweepResult:
    """How the points ended. Raises a stop of the sweep itself, and ConfigError where the launcher
    began none of them."""
    try:
        launch(job.points, hydra_overrides, job)
    except STOPS:
        if not _read_result(job).stopped:
            raise  # it was the sweep that was stopped, not one of its jobs
    except Exception as error:
        if not _read_result(job).num_begun:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the launcher cannot run this sweep ({one_line(error)}); correct its settings"
            ) from error
        warn(f"the launcher gave up: {one_line(error)[:300]}")
    return _read_result(job)


def _read_result(job: SweepJob) -> SweepResult:
    files = [job.folder / f"{number}.json" for number in range(len(job.points))]
    left = [
        json.loads(file.read_text("utf-8"))["code"] if file.exists() else None for file in files
    ]
    return SweepResult(left, sum(file.exists() for file in files))

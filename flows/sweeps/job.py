"""Runs one point of a sweep, in any process, and writes how it ended to a file.

A job without a file has not begun; one whose file has no code has died.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.console import say, set_up_console
from flows.exit_codes import exit_code
from flows.stops import Pruned, Terminated
from flows.sweeps.launch import job_number
from flows.tracking.described import SWEEP_VARIABLE, PointOfSweep
from flows.tracking.headline import HEADLINE
from llm_core.json_files import read_json
from llm_core.printing import print_defect
from tasks.runtime.artifact import write_json

FAILED = 1
"""Code of a job that left none: a defect, or a death."""
STOPPED = (os.EX_TEMPFAIL, 130, 143)
"""Codes of jobs that somebody stopped."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep, and what its run is told about the sweep."""

    number: int
    """From 0."""
    overrides: Sequence[str]
    about: PointOfSweep


@dataclass(frozen=True)
class Ending:
    """How a point ended, as far as its job could say."""

    has_begun: bool = False
    code: int | None = None
    run_id: str | None = None
    results: dict[str, Any] = field(default_factory=dict)
    """Headline numbers."""
    pruned: str | None = None
    """Why its training was stopped."""

    @property
    def state(self) -> str:
        if self.pruned:
            return "pruned"
        if self.code is None:
            return "died" if self.has_begun else "not begun"
        return "completed" if self.code == 0 else "stopped" if self.code in STOPPED else "failed"

    @property
    def is_final(self) -> bool:
        """Whether the point need not be run again."""
        return self.state in ("completed", "pruned", "failed")


def read_ending(folder: Path, number: int) -> Ending:
    file = folder / f"{number}.json"
    return Ending(True, **read_json(file)) if file.exists() else Ending()


@dataclass
class SweepJob:
    """Runs the next point, and writes how it ended to `folder`. The launcher may pickle this."""

    flow: str
    folder: Path
    total: int
    """Points of the sweep."""
    points: list[Point] = field(default_factory=list)
    """In the order in which they are launched."""

    def __call__(self, _: Any) -> int:
        set_up_console()
        # A launcher's own way to start processes (joblib's is called loky) is unknown to the
        # processes that a stage starts.
        if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
            multiprocessing.set_start_method("spawn", force=True)
        point = self.points[job_number()]
        file = self.folder / f"{point.number}.json"
        say(f"run {point.number + 1} of {self.total}: {point.about.name}")
        # Written first, so that a job that dies differs from one that never began.
        write_json(file, {"code": None})
        os.environ[SWEEP_VARIABLE] = point.about.as_text()
        known: dict[str, Any] = {}
        code = FAILED
        try:
            code = exit_code(lambda: _run(self.flow, point, known))
        except Exception as error:  # noqa: BLE001 - a defect costs its own point
            print_defect(error)
        finally:
            os.environ.pop(SWEEP_VARIABLE, None)
            write_json(file, {"code": code, **known})
        if code in STOPPED:
            raise Terminated(f"run {point.number + 1} was stopped")
        return code


def _run(flow: str, point: Point, known: dict[str, Any]) -> int:
    """Run a point; `known` is told what its file says."""
    from flows.commands.runs import run_once  # which imports this module

    try:
        summary = run_once(flow, point.overrides)
    except Pruned as stopped:
        say(f"run {point.number + 1}: {stopped}")
        known |= {"pruned": str(stopped)}
        return 0
    known |= {"run_id": summary["run_id"], "results": {name: summary[name] for name in HEADLINE}}
    return 0

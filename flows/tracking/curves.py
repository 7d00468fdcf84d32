"""Sends the rows of a training to MLflow while they are written, each step once and with its time.

The trainer writes `metrics.jsonl` and `timing.jsonl` into its work directory and knows nothing of
MLflow. Rows of metrics have no clock; a logging interval says when it ended (`ended_at`), and steps
within it are placed evenly. Rows after the last interval wait for its end.

MLflow cannot take a value back. So a step is sent once: what is trained again after a kill or a
rollback is skipped up to the last step that was sent. The final `metrics.jsonl` is with the run.
Long trainings are thinned to `MAX_POINTS` steps; validations are all sent.

Cost: what is new in the files is read every few seconds; nothing is done in the trainer.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from flows.tracking.mlflow_log import MlflowLog, Point
from flows.tracking.mlflow_names import numbers
from llm_core.training.metric_log import METRICS_FILE, TIMING_FILE, is_of_run

Row = dict[str, Any]

MAX_POINTS = 2000
"""Steps of a training that MLflow is told of."""
PROBES = {"train": "train_loss", "validation": "val_loss", "timing": "timing/tokens_per_s"}
"""The metric of each kind of row that says how far MLflow has been told."""


@dataclass
class GrowingFile:
    """A JSON-lines file: reads what was appended since the last time, or all of a replaced one."""

    path: Path
    _place: tuple[int, int] = (0, 0)
    """Inode and offset."""

    def new_rows(self) -> list[Row]:
        try:
            with self.path.open("rb") as stream:
                state = os.fstat(stream.fileno())
                inode, offset = self._place
                if inode != state.st_ino or state.st_size < offset:
                    offset = 0
                stream.seek(offset)
                whole, _, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._place = (state.st_ino, offset + len(whole) + bool(whole))
        return [json.loads(line) for line in whole.splitlines()]


@dataclass
class Clock:
    """Tells when a step ended, from the ends of logging intervals."""

    steps: list[float] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    def see(self, intervals: Sequence[Row]) -> None:
        """Take in rows of `timing.jsonl`; ones without a time are of older versions."""
        for row in intervals:
            if "ended_at" not in row:
                continue
            ended_s = datetime.fromisoformat(row["ended_at"]).timestamp()
            if "num_steps" in row:
                self._place(row["step"] - row["num_steps"], ended_s - row["elapsed_s"])
            self._place(row["step"], ended_s)

    def _place(self, step: float, at_s: float) -> None:
        # What is trained again after a resumption was measured before: the first time counts.
        if not self.steps or step > self.steps[-1]:
            self.steps.append(step)
            self.at_s.append(at_s)

    @property
    def last_step(self) -> float:
        return self.steps[-1] if self.steps else -1.0

    def milliseconds(self, step: int, otherwise_ms: int) -> int:
        if not self.steps:
            return otherwise_ms
        return int(1000 * float(np.interp(step, self.steps, self.at_s)))


class Curves:
    """What is new in the rows of one training.

    sent: {kind of row: last step that MLflow has}, kept up to date by `send`. num_steps: of the
    whole training.
    """

    def __init__(self, sent: dict[str, int], num_steps: int) -> None:
        self._sent, self._seen = sent, dict(sent)
        self._stride = max(1, -(-num_steps // MAX_POINTS))
        self._num_steps = num_steps
        self._clock = Clock()
        self._waiting: list[Row] = []
        self._unsent: list[Point] = []
        self._files: dict[Path, GrowingFile] = {}

    def read(self, folder: Path, now_ms: int, is_over: bool) -> None:
        """Take in what the training below `folder` has written. is_over: nothing more comes."""
        runs = [file.parent for file in folder.glob(f"run-*/{METRICS_FILE}")]
        if not runs:
            return
        try:
            workdir = max(runs, key=lambda path: (path / METRICS_FILE).stat().st_mtime)
        except FileNotFoundError:  # the stage has ended meanwhile, and gives the rest
            return
        # Metrics first: a logging interval is written after the rows that it times.
        rows, timing = (self._new(workdir / name) for name in (METRICS_FILE, TIMING_FILE))
        self.take(rows, timing, now_ms, is_over)

    def take(
        self, rows: Sequence[Row], timing: Sequence[Row], now_ms: int, is_over: bool = True
    ) -> None:
        """Make points of rows that have not been sent."""
        self._clock.see(timing)
        self._waiting += [row for row in rows if not is_of_run(row)]
        known = math.inf if is_over else self._clock.last_step
        due = [row for row in self._waiting if row["step"] <= known]
        self._waiting = [row for row in self._waiting if row["step"] > known]
        for row in due:
            kind = "validation" if "val_loss" in row else "train"
            is_shown = kind == "validation" or self._is_shown(row["step"])
            if is_shown and self._is_new(kind, row["step"]):
                self._add(row["step"], numbers(_values(row)), now_ms)
        for row in timing:
            if self._is_new("timing", row["step"]):
                values = {name: value for name, value in row.items() if name != "num_steps"}
                self._add(row["step"], numbers({"timing": _values(values)}), now_ms)

    def send(self, log: MlflowLog, run_id: str) -> bool:
        """Send what is new; whether there was anything. What is sent twice counts once: its time
        is the same."""
        if not self._unsent:
            return False
        log.require_listener()
        log.points(run_id, self._unsent)
        self._unsent.clear()
        self._sent |= self._seen
        return True

    def _new(self, path: Path) -> list[Row]:
        return self._files.setdefault(path, GrowingFile(path)).new_rows()

    def _is_shown(self, step: int) -> bool:
        return step % self._stride == 0 or step == self._num_steps or step == 1

    def _is_new(self, kind: str, step: int) -> bool:
        if step <= self._seen.get(kind, -1):
            return False
        self._seen[kind] = step
        return True

    def _add(self, step: int, values: Mapping[str, float], now_ms: int) -> None:
        at_ms = self._clock.milliseconds(step, now_ms)
        self._unsent += [Point(name, value, at_ms, step) for name, value in values.items()]


def _values(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "step"}

"""Reads how far a run is from the files it writes: parts of a stage, or steps of a training."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flows.live.announced import LiveRun
from llm_core.json_files import UnreadableJson, read_json
from llm_core.training.metric_log import TIMING_FILE, read_rows
from llm_core.training.status import STATUS_FILE, status_as_written
from tasks.clusters.job import JOB_FILE, read_job


@dataclass(frozen=True)
class StageProgress:
    """How far a stage is. left_s: seconds left at its speed so far; None before that is known."""

    done: int
    total: int
    unit: str
    left_s: float | None
    waits: str = ""
    """Of a job of a cluster that is queued: what the scheduler says."""

    @property
    def done_frac(self) -> float:
        return self.done / self.total if self.total else 0.0

    def __str__(self) -> str:
        if self.waits:
            return f"{self.unit} {self.done:,} of {self.total:,}, {self.waits}"
        left = f", {clock(self.left_s)} left" if self.left_s is not None else ""
        return f"{self.unit} {self.done:,} of {self.total:,}{left}"


def stage_progress(run: LiveRun) -> StageProgress | None:
    """How far the stage of a run is; None where it does not say."""
    if run.stage == "train":
        return _training_progress(run)
    if run.parts is None or run.parts[1] <= 1 or run.stage_started_at is None:
        return None
    done, total = run.parts
    elapsed_s = (datetime.now(UTC) - datetime.fromisoformat(run.stage_started_at)).total_seconds()
    return StageProgress(done, total, "part", elapsed_s / done * (total - done) if done else None)


def clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _training_progress(run: LiveRun) -> StageProgress | None:
    work = Path(run.store) / ".work" / "train" / str(run.key)
    with suppress(OSError, UnreadableJson):  # the training ends while its files are read
        files = sorted(
            (*work.glob(f"out.work/run-*/{STATUS_FILE}"), *work.glob(f"out.work/run-*/{JOB_FILE}")),
            key=lambda file: file.stat().st_mtime,
        )
        if not files:
            return None
        folder = files[-1].parent
        total = int(read_json(folder / "config.json")["train"]["num_steps"])
        step = int(status_as_written(folder / STATUS_FILE).get("step", 0))
        if (job := read_job(folder)).get("phase") == "queued":
            return StageProgress(step, total, "step", None, f"job {job['id']} {job['words']}")
        timing = read_rows(folder / TIMING_FILE) if (folder / TIMING_FILE).exists() else []
        return StageProgress(step, total, "step", _left_s(timing, total - step))
    return None


def _left_s(timing: list[dict[str, Any]], num_steps: int) -> float | None:
    return timing[-1]["elapsed_s"] / timing[-1]["num_steps"] * num_steps if timing else None

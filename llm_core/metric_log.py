"""What a run writes while it goes: `metrics.jsonl` (pure numbers of training), `timing.jsonl`, `events.jsonl`, `status.json`.

`metrics.jsonl` has one line per step and one per validation, and holds nothing of the clock, so that a run that was
killed and resumed leaves the same bytes as one that was not. Lines past the checkpoint a run resumes from are cut off.
`events.jsonl` tells what happened to a run and is no part of training: when, at which step, what. Nothing is ever cut off it.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError

METRICS_FILE = "metrics.jsonl"
TIMING_FILE = "timing.jsonl"
EVENTS_FILE = "events.jsonl"
STATUS_FILE = "status.json"
PROFILE_FOLDER = "profile"


class MetricLog:
    """Appends rows with a `step` to a JSON-lines file; flushed row by row, synced on request."""

    def __init__(self, path: Path, resumed_step: int) -> None:
        self._path = path
        self._open(resumed_step)

    def _open(self, step: int) -> None:
        self.rows = [row for row in read_rows(self._path) if row["step"] <= step]
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text("".join(_line(row) for row in self.rows), "utf-8")
        os.replace(temporary, self._path)
        self._stream = self._path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._stream.write(_line(row))
        self._stream.flush()

    def cut(self, step: int) -> None:
        """Forget the rows of later steps."""
        self.close()
        self._open(step)

    def sync(self) -> None:
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


class EventLog:
    """Appends events to a JSON-lines file, made when the first comes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, step: int, what: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(_line({"at": at, "event": event, "step": step, "what": what}))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows of a JSON-lines file that may be growing or torn at its end; none where there is no file.

    Raises ConfigError where a row before the end is none, as after the loss of a disk block.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"line {number} of {path} is damaged ({error}); delete that line, checkpoints stay good") from error
    return rows


def write_status(path: Path, outcome: str, step: int, **facts: Any) -> None:
    """Say how the run stands: running, finished, preempted or failed. Readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"outcome": outcome, "step": step} | facts, sort_keys=True) + "\n", "utf-8")
    os.replace(temporary, path)


def read_status(path: Path) -> dict[str, Any]:
    """The last status, or an empty one where no run has begun."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"

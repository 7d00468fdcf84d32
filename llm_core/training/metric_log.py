"""Keeps what a run writes while it goes: `metrics.jsonl` and `timing.jsonl`.

`metrics.jsonl` has one row per step and one per validation. They hold nothing of the clock, so that
a run that was killed and resumed leaves the same bytes of them as one that was not; those past the
checkpoint a run resumes from are cut off.

Between them stand events, rows with an `event`. Those of training (a skipped step, a rollback) are
the same whenever it is done again. Those of the run (`at`, `event`, `step`, `what`) are not: that
it was stopped or went on, that a checkpoint was damaged, that a process was slow. They are never
cut off, and a run that nothing happened to has none.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError
from llm_core.durable import write_durably

METRICS_FILE = "metrics.jsonl"
TIMING_FILE = "timing.jsonl"
PROFILE_FOLDER = "profile"


class MetricLog:
    """Appends rows with a `step` to a JSON-lines file; flushed row by row, synced on request.

    A context: the file is closed at its end, also where the run is refused. Of what training wrote
    it remembers the last row, what validations found, and events; a million steps are in the file
    alone.

    resumed_step: later rows are cut off; None: none are yet.
    """

    def __init__(self, path: Path, resumed_step: int | None = None) -> None:
        self._path = path
        self._writing = threading.Lock()
        """A thread may tell of the run meanwhile."""
        self._open(resumed_step)

    def _open(self, step: int | None) -> None:
        self.last: dict[str, Any] = {}
        self.val_losses: list[float] = []
        self.events: list[dict[str, Any]] = []
        write_durably(self._path, self._kept(step))
        self._stream = self._path.open("a", encoding="utf-8")

    def _kept(self, step: int | None) -> Iterator[str]:
        for row in iter_rows(self._path):
            if is_of_run(row):
                yield _line(row)
            elif step is None or row["step"] <= step:
                self._remember(row)
                yield _line(row)

    def _remember(self, row: dict[str, Any]) -> None:
        self.last = row
        if "val_loss" in row:
            self.val_losses.append(row["val_loss"])
        if "event" in row:
            self.events.append(row)

    def write(self, row: dict[str, Any]) -> None:
        self._remember(row)
        self._append(row)

    def tell(self, event: str, step: int, what: str) -> None:
        """Record something that happened to the run outside of training."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._append({"at": at, "event": event, "step": step, "what": what})

    def _append(self, row: dict[str, Any]) -> None:
        with self._writing:
            self._stream.write(_line(row))
            self._stream.flush()

    def cut(self, step: int) -> None:
        """Forget the rows of later steps."""
        with self._writing:
            self.close()
            self._open(step)

    def sync(self) -> None:
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> MetricLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_of_run(row: dict[str, Any]) -> bool:
    """Whether a row tells what happened to the run, rather than what training did."""
    return "at" in row


def training_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the events of the run: the same however often it was stopped."""
    return [row for row in rows if not is_of_run(row)]


def iter_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Whole rows of a JSON-lines file that may be growing or torn at its end; none where there is
    no file.

    Raises ConfigError where a row before the end is damaged, as after the loss of a disk block.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return  # a row that was torn off
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"line {number} of {path} is damaged ({error}); delete that line, which no"
                    " checkpoint needs"
                ) from error
            yield row


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All that `iter_rows` gives."""
    return list(iter_rows(path))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"

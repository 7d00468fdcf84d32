"""Shows how far a training is, from the metrics it writes: a bar on a terminal, a line now and then
elsewhere.

What happens to the run meanwhile (that it resumed, that a checkpoint was damaged) is a line each.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_core.printing import is_live, note
from llm_core.training.metric_log import METRICS_FILE, is_of_run

if TYPE_CHECKING:
    from llm_core.live import LiveBar

TAIL_BYTES = 4096
EVERY_S = 10.0


class TrainingProgress:
    """`show(workdir)` may be called often; it reads the end of a file and prints at most every
    `EVERY_S` seconds."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._bar: LiveBar | None = None
        self._shown_step, self._shown_at = 0, time.monotonic()
        self._began_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._read: tuple[int, bytes] = (0, b"")
        """How many bytes of the metrics were looked through, and the last line of them."""
        self._told: set[bytes] = set()

    def show(self, workdir: Path) -> None:
        self._tell_events(workdir / METRICS_FILE)
        row = last_train_row(workdir / METRICS_FILE)
        if row is None or row["step"] == self._shown_step:
            return
        if is_live():
            self._advance_bar(row)
            self._shown_step = row["step"]
        elif time.monotonic() - self._shown_at >= EVERY_S or row["step"] == self._num_steps:
            note(f"train: step {row['step']}/{self._num_steps}, loss {row['train_loss']:.3f}")
            self._shown_step, self._shown_at = row["step"], time.monotonic()

    def _tell_events(self, path: Path) -> None:
        """One line for each event of the run since this began."""
        if not path.exists():
            return
        with path.open("rb") as stream:
            offset, last = self._read
            stream.seek(offset - len(last))
            if stream.read(len(last)) != last:  # the file was cut: it is another one
                offset = stream.seek(0)
            lines = stream.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        if whole:
            self._read = (offset + sum(map(len, whole)), whole[-1])
        for line in whole:
            if b'"at"' in line and line not in self._told:
                row = json.loads(line)
                if is_of_run(row) and row["at"] >= self._began_at:
                    self._told.add(line)
                    note(f"train: {row['event']} (step {row['step']}): {row['what']}")

    def _advance_bar(self, row: dict[str, Any]) -> None:
        from llm_core.live import LiveBar  # and with it rich, which only terminals need

        if self._bar is None:
            self._bar = LiveBar("train", "step", row["step"])
        self._bar.update(row["step"], self._num_steps, f"loss {row['train_loss']:.3f}")
        if row["step"] == self._num_steps:
            self.close()

    def close(self) -> None:
        """Take the bar away, also where the training ends before its last step."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def last_train_row(path: Path) -> dict[str, Any] | None:
    """The last whole training row of a growing metrics file."""
    if not path.exists():
        return None
    with path.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
        lines = stream.read().split(b"\n")[:-1]
    for line in reversed(lines):
        if line.startswith(b"{") and b'"train_loss"' in line:
            return dict(json.loads(line))
    return None

"""Tells a stop from a failure: Ctrl-C, SIGTERM, a training that was told to save and end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tasks.runtime.stage import StageInterrupted


class Terminated(BaseException):
    """SIGTERM, as an exception in the main thread, so that everything open is closed on the way
    out."""


class Pruned(Exception):
    """The training of a point of a sweep fell behind others and was stopped. It says at which step
    and why."""


STOPS = (KeyboardInterrupt, Terminated, StageInterrupted)
"""What is raised when somebody asks a run to stop, rather than something breaks."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM unwind the main thread like Ctrl-C does. Elsewhere signals cannot be set, and
    nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated(f"stopped by signal {number}")

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

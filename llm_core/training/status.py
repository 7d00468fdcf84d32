"""Keeps `status.json`: how a run stands, who runs it, and when it last gave a sign of life.

| field | what it is |
|---|---|
| `outcome` | running, finished, preempted, failed, or died |
| `step`, `step_at` | the last step, and when it ended; of a hung run they stand still while `at` goes on |
| `at` | the last sign of life: a thread writes the file every `BEAT_S`, whatever training waits for |
| `pid`, `host` | the first rank |
| `alarm` | the process that gives no sign of life, or is lost, while others wait for it |
| `error`, `refused` | of failed: what was wrong, and whether a user can change it |
| `cause` | of died: how the processes ended without writing an outcome |

A dying process cannot write `died`: its parent does (`note_death`), or the next reader of the file.
A trainer holds a lock on its work directory, which ends with it, so a reader on its host knows;
elsewhere the last sign of life decides. Training only remembers the step, so a step costs nothing.
"""  # noqa: E501

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from llm_core.beats import Beats
from llm_core.durable import write_durably

STATUS_FILE = "status.json"
LOCK_FILE = "trainer.lock"
BEAT_S = 5.0
SILENT_S = 300.0
"""Silence after which a run on another host is taken for dead; clocks may differ."""


class Heartbeat:
    """Writes the status of a run, and again and again while it is entered. On the first rank."""

    def __init__(self, workdir: Path, step: int = 0) -> None:
        self._path = workdir / STATUS_FILE
        self.earlier = status_as_written(self._path)
        """What the run before left, in this work directory."""
        self._step = (step, time.time())
        self._facts: dict[str, Any] = {}
        self._writing = threading.Lock()
        self._beats = Beats("heartbeat", self.tell, BEAT_S, str(self._path))

    def __enter__(self) -> Heartbeat:
        self._write("running")
        self._beats.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._beats.__exit__(kind, error, trace)

    @property
    def step(self) -> int:
        """The last that has ended."""
        return self._step[0]

    def note_step(self, step: int) -> None:
        """A step has ended; the next beat says so."""
        self._step = (step, time.time())

    def tell(self, **facts: Any) -> None:
        """Add facts of the run, if any, and write it; nothing is written after its last word."""
        self._facts |= facts
        self._write("running", unless_ended=True)

    def end(self, outcome: str, **facts: Any) -> None:
        """The last word. Raises OSError where it cannot be written."""
        self._beats.end()
        self._facts |= facts
        self._write(outcome, durable=True)

    def _write(self, outcome: str, durable: bool = False, unless_ended: bool = False) -> None:
        with self._writing:
            if unless_ended and self._beats.have_ended:
                return
            step, ended_at = self._step
            who = {"pid": os.getpid(), "host": platform.node(), "step_at": _text_of(ended_at)}
            write_status(self._path, outcome, step, durable, **who, **self._facts)


def _text_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def write_status(path: Path, outcome: str, step: int, durable: bool = False, **facts: Any) -> None:
    """Say how a run stands; readers see the old or new file. On a full disk it is overwritten."""
    status = {"outcome": outcome, "step": step, "at": _text_of(time.time())} | facts
    text = json.dumps(status, sort_keys=True) + "\n"
    try:
        write_durably(path, text, synced=durable)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        _write_over(path, text)


def _write_over(path: Path, text: str) -> None:
    """In the blocks that the file has: a full disk gives no others."""
    with path.open("r+b", buffering=0) as stream:
        # JSON may end in blanks.
        stream.write(text.encode().ljust(os.fstat(stream.fileno()).st_size))
        os.fsync(stream.fileno())


def read_status(path: Path) -> dict[str, Any]:
    """How a run stands, `died` if it ended without a word; empty where none has begun."""
    status = status_as_written(path)
    if status.get("outcome") != "running":
        return status
    host, at = status.get("host"), status.get("at")
    if host is None or at is None:
        return status
    who = f"process {status.get('pid')} on {host}"
    if host != platform.node():
        silent_s = (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
        dead = {"outcome": "died", "cause": f"{who} gave no sign of life since {at}"}
        return status if silent_s < SILENT_S else status | dead
    if is_held(path.parent):
        return status
    status = status_as_written(path)  # again: it may have ended with a word in between
    dead = {"outcome": "died", "cause": f"{who} is gone; its last sign of life was at {at}"}
    return status | dead if status.get("outcome") == "running" else status


def is_held(workdir: Path) -> bool:
    """Whether a trainer on this host lives that has this work directory."""
    try:
        with (workdir / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def note_death(path: Path, cause: str) -> None:
    """Say that a run ended without a word. Raises OSError where it cannot be written."""
    known = status_as_written(path)
    step = known.get("step", 0)
    facts = {name: known[name] for name in known.keys() - {"outcome", "step", "at"}}
    write_status(path, "died", step, durable=True, **facts | {"cause": cause})


def status_as_written(path: Path) -> dict[str, Any]:
    """As it is in the file, whether the run lives or not; empty where none is whole."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

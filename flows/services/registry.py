"""Keeps which services were started, in `<state>/services.json`: process id, start time and port.

One command at a time reads and changes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.services.access import answers
from flows.services.processes import (
    descendants,
    is_running,
    left_behind,
    start_detached,
    start_time,
    stop,
)
from llm_core.locks import open_lock
from tasks.runtime.artifact import write_json
from tasks.runtime.code import ROOT

START_LIMIT_S, END_S = 300.0, 10.0
EVERY_S = 15.0
"""How often a service looks whether it is still that of its state folder."""


class ServiceError(RuntimeError):
    """A service that does not start; the message names its log."""


class Registry:
    """`services.json`: what was started, by name, with its process and port. One command at a time
    changes it."""

    def __init__(self, state: Path) -> None:
        self.state = state.resolve()
        self._file = self.state / "services.json"
        self._known: dict[str, Any] = {}
        try:
            self._known |= json.loads(self._file.read_text("utf-8"))
        except FileNotFoundError:
            return
        except (ValueError, TypeError) as error:
            raise ServiceError(
                f"{self._file} is not readable ({error}); stop its services by hand and remove it"
            ) from error

    @classmethod
    @contextlib.contextmanager
    def open(cls, state: Path) -> Iterator[Registry]:
        with open_lock(state / "services.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield cls(state)

    def get(self, name: str) -> Any:
        return self._known.get(name)

    def set(self, name: str, value: Any) -> None:
        self._known[name] = value
        write_json(self._file, self._known)
        self._file.chmod(0o600)

    def drop(self, name: str) -> None:
        """Forget the process; its port is used again if it is free."""
        if name in self._known:
            self.set(name, {"port": self.port(name)})

    def port(self, name: str) -> int | None:
        return (self._known.get(name) or {}).get("port")

    def alive(self, name: str) -> bool:
        entry = self._known.get(name) or {}
        return "pid" in entry and is_running(entry["pid"], entry["started"])

    def is_own(self, name: str) -> bool:
        """Whether this process is the one of a name."""
        return (self._known.get(name) or {}).get("pid") == os.getpid()

    def clear(self, name: str) -> None:
        """Stop what a process that died has left behind, such as children that hold its port."""
        entry = self._known.get(name) or {}
        if "pid" in entry and not self.alive(name):
            stop(left_behind(entry["pid"]), 5.0)

    def log(self, name: str) -> Path:
        return self.state / "logs" / f"{name}.log"

    def start(
        self, name: str, command: list[str], env: dict[str, str], port: int | None = None
    ) -> None:
        # Flow runs of the worker write into the store, which others may be meant to read.
        umask = -1 if name == "worker" else 0o077
        process = start_detached(command, env, ROOT, self.log(name), umask)
        self.set(name, {"pid": process.pid, "started": start_time(process.pid), "port": port})

    def wait(self, name: str, url: str) -> None:
        until = time.monotonic() + START_LIMIT_S
        while not answers(url):
            if not self.alive(name) or time.monotonic() > until:
                state = "did not answer in time" if self.alive(name) else "ended at once"
                tail = self.log(name).read_text("utf-8", errors="replace").strip().splitlines()[-1:]
                raise ServiceError(
                    f"{name} {state}: {' '.join(tail)[:200]}; its log is {self.log(name)}"
                )
            time.sleep(0.25)


def end_if_dropped(state: Path, name: str, grace_s: float) -> None:
    """End this process, and within `grace_s` what it has started, where it is not the service of a
    state folder any more: the folder was removed, or another process is in its place."""
    if Registry(state).is_own(name):
        return
    own = os.getpid()
    stop([pid for pid in descendants([own]) if pid != own], grace_s)
    stop([own], END_S)

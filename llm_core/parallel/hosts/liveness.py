"""Names a process of a run that gives no sign of life, while the others wait for it.

A thread of each process tells the store that it lives, ten times in `heartbeat_s`, and watches the
next process in order of ranks, past those that are silent. So a process makes four requests a beat,
however many there are. What it finds is an alarm, which all processes read.

| alarm | meaning | what follows |
|---|---|---|
| `silent_rank` | no sign for 0.6 of `heartbeat_s`: stopped, or its machine is lost | every process writes its flight records; waits for the store end after `timeout_s` |
| `rank_is_back` | it lives again | |
| `lost_rank` | it failed, or its process on this machine is gone | as for the first, and waits for the store end at once |

What an alarm leaves in files, a full disk or a removed folder may refuse: a process says so once,
and its watch and the run go on. A process whose main thread waits is alive: which one the others wait for then, the flight records
say (`llm_core.parallel.hosts.flight`).
"""  # noqa: E501

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from llm_core.beats import Beats
from llm_core.parallel.hosts.exchange import Hosts
from llm_core.parallel.hosts.flight import write_records
from llm_core.printing import note
from llm_core.process import boot_id

BEATS, SILENT_FRAC = 10, 0.6
"""Signs of life in `heartbeat_s`, and the share of it after which a process counts as silent: with
the beats that the alarm takes, it is known everywhere within `heartbeat_s`."""
LEFT, FAILED = "left", "failed"
"""Last words of a process."""
SILENT, BACK, LOST = "silent_rank", "rank_is_back", "lost_rank"
"""Alarms; a rank that is lost does not come back."""


@dataclass
class Liveness:
    """Watches while it is entered. Every process has one.

    flight: folder for flight records. tell: told (alarm, text) of every alarm, on every process,
    from the thread.
    """

    hosts: Hosts
    heartbeat_s: float
    timeout_s: float
    flight: Path
    tell: Callable[[str, str], None]
    _number: int = 0
    _heard: int = 0
    _seen: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Rank → its last word, and when that was new."""
    _named: dict[int, str] = field(default_factory=dict)
    """Rank → alarm that this process has raised of it."""
    _alarms: dict[int, tuple[str, str, float]] = field(default_factory=dict)
    """Rank → alarm that all know of it, its text, and when the first was heard."""

    def __enter__(self) -> Liveness:
        self.hosts.is_watched = True
        # Of its own: a request that waits would hold up those of the main thread.
        self._store = self.hosts.store.clone()
        self._processes = processes_seen_here()
        what = f"rank {self.hosts.rank}: an alarm or its flight records"
        self._beats = Beats("liveness", self._live, self.heartbeat_s / BEATS, what)
        self._live()
        self._beats.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._beats.__exit__(kind, error, trace)
        with self._beats.writing():
            # Of a collective that broke off or took too long, among others.
            if isinstance(error, RuntimeError) and write_records(self.flight, self.hosts.rank):
                note(
                    f"rank {self.hosts.rank}: its last collectives are in {self.flight}; python -m"
                    f" llm_core.parallel.hosts.flight {self.flight} says which rank is behind"
                )
        try:
            self._store.set(self._key(self.hosts.rank), LEFT if error is None else FAILED)
        except RuntimeError as gone:  # with the process that held it, as at the end of a run
            if error is None:
                note(f"rank {self.hosts.rank}: the store of the run does not answer: {gone}")

    @property
    def standing(self) -> str | None:
        """The text of an alarm that still holds, the oldest; None: all live, as far as is known."""
        return next((text for _, text, _ in list(self._alarms.values())), None)

    def _live(self) -> None:
        self._number += 1
        who = f"{self._number} {os.getpid()} {platform.node()} {self._processes}"
        try:
            self._store.set(self._key(self.hosts.rank), who)
            self._watch()
            self._listen()
        except RuntimeError as error:
            if not self._beats.have_ended:
                self._beats.end()
                self.hosts.fault = f"the store of the run does not answer: {error}"
                with self._beats.writing():
                    self.tell(LOST, self.hosts.fault)

    @staticmethod
    def _key(rank: int) -> str:
        return f"beat-{rank}"

    def _watch(self) -> None:
        """Look at the next process that gives a sign of life, and name those before it."""
        for rank in tuple(self._named):
            word, silent_s = self._last_word(rank)
            is_silent = silent_s >= SILENT_FRAC * self.heartbeat_s
            if not is_silent and word not in (LEFT, FAILED) and not self._is_gone(word):
                del self._named[rank]
                self._raise_alarm(rank, BACK, f"{_who(rank, word)} lives again")
        for distance in range(1, self.hosts.world):
            rank = (self.hosts.rank + distance) % self.hosts.world
            word, silent_s = self._last_word(rank)
            if word == LEFT:
                continue
            if word == FAILED or self._is_gone(word):
                self._name(rank, LOST, f"{_who(rank, word)} has ended, others go on")
            elif silent_s >= SILENT_FRAC * self.heartbeat_s:
                text = (
                    f"{_who(rank, word)} has given no sign of life for {silent_s:.1f} s: it is"
                    " stopped or starved, or its machine is lost"
                )
                self._name(rank, SILENT, text)
            else:
                return

    def _last_word(self, rank: int) -> tuple[str, float]:
        """(last word, seconds since it was new)"""
        key, now = self._key(rank), time.monotonic()
        word = self._store.get(key).decode() if self._store.check([key]) else ""
        if rank not in self._seen or word != self._seen[rank][0]:
            self._seen[rank] = word, now
        return word, now - self._seen[rank][1]

    def _is_gone(self, word: str) -> bool:
        """Whether a process that can be looked for from here no longer exists."""
        known = word.split(" ")
        if len(known) != 4 or known[3] != self._processes:
            return False
        try:
            os.kill(int(known[1]), 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # of another user, so it is there
            return False
        return False

    def _name(self, rank: int, alarm: str, text: str) -> None:
        if self._named.get(rank) not in (alarm, LOST):
            self._named[rank] = alarm
            self._raise_alarm(rank, alarm, text)

    def _raise_alarm(self, rank: int, alarm: str, text: str) -> None:
        number = self._store.add("alarms", 1)
        self._store.set(f"alarm-{number}", json.dumps([rank, alarm, text]))

    def _listen(self) -> None:
        """Act on what this process or another has found."""
        for number in range(self._heard + 1, self._store.add("alarms", 0) + 1):
            if not self._store.check([f"alarm-{number}"]):
                break  # counted, and about to be said
            self._heard = number
            rank, alarm, text = json.loads(self._store.get(f"alarm-{number}"))
            known, _, since = self._alarms.get(rank, (BACK, "", time.monotonic()))
            if known in (alarm, LOST):
                continue  # two that watched have found the same
            self._alarms[rank] = alarm, text, since
            if alarm == BACK:
                del self._alarms[rank]
            if alarm == LOST:
                self.hosts.fault = text
            with self._beats.writing():
                self.tell(alarm, text)
            with self._beats.writing():
                if alarm != BACK:
                    write_records(self.flight, self.hosts.rank)
        for rank, (_, _, since) in self._alarms.items():
            if time.monotonic() - since > self.timeout_s and self.hosts.fault is None:
                self.hosts.fault = f"rank {rank} has given no sign of life for {self.timeout_s} s"


def _who(rank: int, word: str) -> str:
    """The process, as its beats name it."""
    known = word.split(" ")
    return f"rank {rank} (process {known[1]} on {known[2]})" if len(known) == 4 else f"rank {rank}"


def processes_seen_here() -> str:
    """A name of the processes that this one can look for: of a start of a machine, and a container.
    Names of machines may be equal."""
    boot = boot_id()
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = None
    # Without a name, no other process is looked for.
    return f"{boot}/{namespace}" if boot else uuid.uuid4().hex

"""Decides who takes part in a round, without a master: leases and decisions are files of a folder.

| file | what |
|---|---|
| `made-with.json` | what decides the result of the training that the folder is for |
| `member-M` | lease of a member: locked by its process, touched while that makes progress |
| `round-R/state` | weights and outer momentum that round R begins with |
| `round-R/change-M` | what member M has changed in round R |
| `round-R/members.json` | whose changes count, and who adds them up |

A file is written under another name and then linked to its own, which fails if that is taken: of
several that decide at once, one does, and the others follow. All that decisions rest on is in the
folder, so any member can do the work of one that died. Ages are differences between times of files
in the folder, so clocks of machines do not matter.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_core.beats import Beats
from llm_core.config import ConfigError
from llm_core.json_files import dump_json, read_json
from llm_core.locks import open_lock

ROUND = re.compile(r"round-(\d{8})")
BEATS = 4
"""Renewals within the time of a lease."""


@dataclass(frozen=True)
class Decision:
    members: tuple[int, ...]
    """Ascending: the order in which changes are added."""
    adds_up: int


class Meeting:
    """The folder as one member sees it. silent_s: how long its lease is renewed without progress,
    since a process that hangs may still have a thread that renews."""

    def __init__(
        self, folder: Path, member: int, members: int, lease_s: float, silent_s: float = 1800.0
    ) -> None:
        self.folder, self.member = folder, member
        self._members, self._lease_s, self._silent_s = members, lease_s, silent_s
        self._progress_at = time.monotonic()

    def made_with(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the training of this folder is made with: `settings`, if this member is the first
        here."""
        file = self.folder / "made-with.json"
        if not file.exists() and self.newest() is None:
            text = dump_json(file.name, dict(settings))
            self.put(file, lambda path: path.write_text(text, "utf-8"))
        return read_json(file) if file.exists() else {}

    def progress(self) -> None:
        """Say that this member goes on."""
        self._progress_at = time.monotonic()

    @contextmanager
    def attended(self) -> Iterator[None]:
        """While the block runs, others wait for this member. Raises ConfigError where another run
        has its place."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open_lock(self._lease(self.member)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"parallel.outer.member ({self.member}) is taken by a run that meets in"
                    f" {self.folder}; give each run another number"
                ) from error
            self._touch()
            every_s = self._lease_s / BEATS
            self.progress()
            with Beats("lease", self._renew, every_s, "the lease of this member"):
                yield
            # Others do not wait for one that leaves; for one that dies they wait a lease.
            self._lease(self.member).unlink(missing_ok=True)

    def is_alive(self, member: int) -> bool:
        """Whether a member has renewed its lease in time; this one always has."""
        if member == self.member:
            return True
        self._touch()
        now = self._lease(self.member).stat().st_mtime
        try:
            return now - self._lease(member).stat().st_mtime <= self._lease_s
        except FileNotFoundError:
            return False

    def newest(self) -> int | None:
        """The last round that has a state; None: there is none."""
        return max((r for r in self._rounds() if self.state(r).exists()), default=None)

    def state(self, number: int) -> Path:
        return self._round(number) / "state"

    def change(self, number: int, member: int) -> Path:
        return self._round(number) / f"change-{member}"

    def has_change(self, number: int) -> bool:
        """Whether this member has ended a round."""
        return self.change(number, self.member).exists()

    def decide(self, number: int, waits_for_all: bool) -> Decision | None:
        """Whose changes count in a round; None: live members are still at work.

        waits_for_all: also for members that have not started yet.
        """
        file = self._round(number) / "members.json"
        if not file.exists():
            come = [m for m in range(self._members) if self.change(number, m).exists()]
            missing = [m for m in range(self._members) if m not in come]
            if missing and (waits_for_all or any(map(self.is_alive, missing))):
                return None
            text = dump_json(file.name, {"members": come, "adds_up": self.member})
            self.put(file, lambda path: path.write_text(text, "utf-8"))
        found = read_json(file)
        return Decision(tuple(found["members"]), found["adds_up"])

    def put(self, file: Path, write: Callable[[Path], object], replace: bool = False) -> bool:
        """Make a file appear whole; whether this call made it. A file that is there stays, unless
        `replace`."""
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        try:
            write(temporary)
            if replace:
                os.replace(temporary, file)
                return True
            try:
                os.link(temporary, file)
            except FileExistsError:
                return False
            return True
        finally:
            temporary.unlink(missing_ok=True)

    def prune(self, before: int) -> None:
        """Remove the rounds before one; several members may do so at once."""
        for number in self._rounds():
            if number < before:
                shutil.rmtree(self._round(number), ignore_errors=True)

    def _renew(self) -> None:
        if time.monotonic() - self._progress_at <= self._silent_s:
            self._touch()

    def _touch(self) -> None:
        os.utime(self._lease(self.member))

    def _lease(self, member: int) -> Path:
        return self.folder / f"member-{member}"

    def _round(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}"

    def _rounds(self) -> list[int]:
        found = map(ROUND.fullmatch, os.listdir(self.folder) if self.folder.exists() else ())
        return sorted(int(match[1]) for match in found if match)

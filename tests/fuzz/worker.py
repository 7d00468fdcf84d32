"""Feeds changed files to one target, in a forked process with a clock and a limit of memory.

The process ends early by an error (exit status 1), by the clock (SIGALRM) or by a crash. The input
that ended it is then in FOLDER/input, and what it wrote to standard error in FOLDER/errors.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.changes import changed, draw_changes
from tests.fuzz.target import Target

HANG_S = 10
MEMORY_BYTES = 2 << 30
"""Of address space, beyond what the sound files take."""


class Counts:
    """What a target has done so far; its parent still reads it after a crash."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 24)

    def write(self, num_inputs: int, elapsed_s: float, held_bytes: int) -> None:
        struct.pack_into("<QdQ", self._shared, 0, num_inputs, elapsed_s, held_bytes)

    def read(self) -> tuple[int, float, int]:
        """(inputs given, seconds since the first, resident bytes before the first)."""
        num_inputs, elapsed_s, held_bytes = struct.unpack_from("<QdQ", self._shared)
        return num_inputs, elapsed_s, held_bytes


def fork(
    target: Target,
    count: int,
    seed: str,
    seconds: float,
    folder: Path,
    counts: Counts,
) -> int:
    """Start a process that gives the target so many inputs, or as many as the seconds allow."""
    sys.stdout.flush()
    if process := os.fork():
        return process
    status = 1
    try:
        errors = os.open(folder / "errors", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        feed(target, count, seed, seconds, folder, counts)
        status = 0
    except BaseException:
        # An error for lack of memory needs some to be written.
        unlimited = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
        raise
    finally:
        os._exit(status)


def feed(
    target: Target,
    count: int,
    seed: str,
    seconds: float,
    folder: Path,
    counts: Counts,
) -> None:
    """Give the sound files, then changed ones until the count or the seconds are reached."""
    for data in target.seeds:
        # A refusal of a sound file is an error of the target: changes of it would reach nothing.
        target.read(data, folder)
    size_pages, resident_pages = Path("/proc/self/statm").read_text().split()[:2]
    held_bytes = int(resident_pages) * resource.getpagesize()
    limit_bytes = int(size_pages) * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    chooser, place, began = random.Random(seed), folder / "input", time.monotonic()
    for number in range(count):
        elapsed_s = time.monotonic() - began
        counts.write(number, elapsed_s, held_bytes)
        if elapsed_s > seconds:
            return
        data = changed(chooser.choice(target.seeds), draw_changes(chooser))
        place.write_bytes(data)
        signal.alarm(HANG_S)
        with contextlib.suppress(*target.refusals):
            target.read(data, folder)
        signal.alarm(0)
    counts.write(count, time.monotonic() - began, held_bytes)

"""Ties a process to the one that started it, names the start of its machine, and says in words how
one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIKELY_CAUSES = {
    "SIGKILL": "the kernel does so when memory runs out, a queue when time is up",
    "SIGBUS": (
        "a mapped file or shared memory got no room, as on a full disk or in a small /dev/shm"
    ),
    "SIGTERM": "it was asked to stop before it could save",
}


def terminate_with_parent(parent: int | None = None, number: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal to this process when the thread that started it ends; Linux only,
    else nothing.

    parent: process id that must still be the parent, for one that died before this call.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def boot_id() -> str | None:
    """What names the time since this machine was started; None where the system has no such name,
    or hides it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return None


def return_free_memory() -> None:
    """Return unused pages to the system, where the allocator is glibc's.

    It keeps free pages that lie below a small live allocation, as after arrays of many parts.
    """
    if hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def describe_end(code: int) -> str:
    """How a process that said nothing ended, by its return code, negative for a signal."""
    if code >= 0:
        return f"ended with code {code} and without a word"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    return f"was ended by {name}{f' ({LIKELY_CAUSES[name]})' if name in LIKELY_CAUSES else ''}"

"""Ties between a process and the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def terminate_with_parent(parent: int | None = None, number: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal to this process when the thread that started it ends; Linux only, else nothing.

    parent: process id that must still be the parent, for one that died before this call.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)

"""Ties between a process and the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def terminate_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to send SIGTERM to this process when the thread that started it ends; Linux only, else nothing.

    parent: process id that must still be the parent, for one that died before this call.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)

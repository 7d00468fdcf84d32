"""Arrays between pages that may not be touched: a kernel that leaves one ends the process, which is
a child's."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


def fenced(array: np.ndarray, behind: bool) -> np.ndarray:
    """A copy whose last byte lies before a forbidden page, or, if not `behind`, whose first byte
    lies behind one."""
    size = -(-max(array.nbytes, 1) // _PAGE) * _PAGE
    room = mmap.mmap(-1, size + 2 * _PAGE)
    copy = np.ndarray(
        array.shape, array.dtype, room, _PAGE + (size - array.nbytes if behind else 0)
    )
    copy[...] = array
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for page in (start, start + _PAGE + size):
        if _LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    copy.setflags(write=array.flags.writeable)
    return copy


def fence_all(arrays: Any, behind: bool) -> Any:
    """The same for tuples of arrays, as deep as they are."""
    return (
        tuple(fence_all(one, behind) for one in arrays)
        if isinstance(arrays, tuple)
        else fenced(arrays, behind)
    )


class FencedNumpy:
    """NumPy for the Python around a kernel: what it makes room with is fenced. To be put in place
    once the kernel is compiled."""

    def __init__(self, behind: bool) -> None:
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name not in ("empty", "zeros", "frombuffer"):
            return found
        return lambda *arguments: fenced(found(*arguments), self._behind)


def death_of(act: Callable[[Callable[[bytes], None]], None]) -> str | None:
    """Run `act` in a child, give it a function to say what it is at; None if it returns, else how
    it ended, and at what."""
    said = mmap.mmap(-1, _PAGE)

    def say(text: bytes) -> None:
        said[:] = text[: len(said)].ljust(len(said), b"\0")

    child = os.fork()
    if not child:
        faulthandler.disable()  # the death is told in one line
        status = 1
        try:
            act(say)
            status = 0
        except BaseException:  # noqa: BLE001 (no exception may lead a child back into the tests)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if not status:
        return None
    how = (
        f"signal {os.WTERMSIG(status)}"
        if os.WIFSIGNALED(status)
        else f"status {os.WEXITSTATUS(status)}"
    )
    return f"{how} at {said[:].rstrip(bytes(1))!r}"

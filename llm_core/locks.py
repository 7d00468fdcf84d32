"""Opens lock files: plain files only, so that a link cannot make us write elsewhere."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from llm_core.config import ConfigError

# Non-blocking, since opening a named pipe would wait for its other end.
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_lock(path: Path) -> IO[str]:
    """A lock file for flock, made if missing. Raises ConfigError where its name is taken."""
    try:
        handle = os.open(path, FLAGS, 0o666)
    except OSError as error:
        if path.is_symlink() or path.is_dir():
            raise _refusal(path) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _refusal(path)
    return os.fdopen(handle, "a+", encoding="utf-8")


@contextlib.contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Hold a lock file while the block runs, where nobody else does; whether that is so.

    One that may only be read, as on a read-only disk, is shared with other readers and kept from
    those who write.
    """
    try:
        lock, how = open_lock(path), fcntl.LOCK_EX
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        lock, how = os.fdopen(handle), fcntl.LOCK_SH
    with lock:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _refusal(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is a link or a folder and not a lock file; find out who made it, then remove it"
    )

"""Makes folders that no other user can change, for caches whose contents are run or unpickled.

Numba and TorchInductor keep machine code and pickles in files and trust what they find. So a cache
belongs to this user alone: its folder has mode 0700, and no step of the way to it belongs to
somebody else or may be written by somebody else. A shared folder with the sticky bit, like /tmp,
may be on the way but never be the cache. Needs the standard library only.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llm_core.config import ConfigError
from llm_core.printing import note

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@functools.cache
def cache_folder(subject: str) -> Path:
    """The user's cache of one subject: `$XDG_CACHE_HOME/textmill/SUBJECT`, else below `~/.cache`,
    else `~/.textmill-cache`.

    Where all are unavailable or open to others, a new folder that ends with the process; one line
    on stderr says so.
    """
    why = ""
    for place in _places():
        try:
            return private_folder(place / subject)
        except (ConfigError, OSError) as error:
            found = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            why = why or str(found)
    folder = Path(tempfile.mkdtemp(prefix=f"textmill-{subject}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    note(
        f"{subject}: every process compiles again, because there is no private cache folder"
        f" ({why or 'no home folder'}); set XDG_CACHE_HOME to a folder of yours"
    )
    return folder


def _places() -> list[Path]:
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return [Path(named) / "textmill"]
    try:
        home = Path.home()
    except RuntimeError:  # a user without an entry in the system's list
        return []
    # Under the umask of some systems ~/.cache belongs to a group, and the home does not.
    return [home / ".cache" / "textmill", home / ".textmill-cache"]


def private_folder(path: Path) -> Path:
    """Make a folder for this user alone. Raises ConfigError where others could replace it."""
    _refuse_if_open(path)
    for step in [*reversed(path.parents), path]:
        if not step.is_dir():
            step.mkdir(mode=0o700, exist_ok=True)
    _refuse_if_open(path)  # somebody may have been faster
    path.chmod(0o700)
    return path


def _refuse_if_open(path: Path) -> None:
    if why := open_to_others(path):
        raise ConfigError(
            f"{why}; fix its owner and mode, or set XDG_CACHE_HOME to a folder of yours"
        )


def open_to_others(path: Path) -> str | None:
    """Why others could change or replace a folder; None where they cannot."""
    for step, is_last in _way(path):
        try:
            status = os.stat(step)
        except FileNotFoundError:
            continue
        if status.st_uid not in ({os.geteuid()} if is_last else {0, os.geteuid()}):
            return f"{step} belongs to another user"
        # Of a folder with the sticky bit others cannot rename or remove what is ours, but they can
        # add to it.
        if status.st_mode & OTHERS_WRITE and (is_last or not status.st_mode & stat.S_ISVTX):
            return f"{step} can be written by other users"
    return None


def _way(path: Path) -> Iterator[tuple[Path, bool]]:
    """Every folder on the way, as it is written and as links lead, and whether it is the last."""
    for end in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        yield from ((parent, False) for parent in reversed(end.parents))
        yield end, True


def keep_compiled_code_private() -> None:
    """Let torch.compile keep and unpickle code in the user's cache, not in a shared folder."""
    if not os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder("torch_graphs"))

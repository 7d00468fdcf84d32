"""Opens folders of a store step by step, never through a link: what is looked at may be removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def names_in(root: Path, folder: Path) -> list[str]:
    """What is in a folder of the store, in order; nothing where it is missing or where a step on
    the way to it is a link."""
    try:
        with opened(root, folder) as there:
            return sorted(os.listdir(there))
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def opened(root: Path, folder: Path) -> Iterator[int]:
    """A folder below `root`, opened step by step. Raises NotADirectoryError where a step is a link
    or a file."""
    folder_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for step in folder.parts:
            try:
                below = os.open(
                    step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder_fd
                )
            except OSError as error:
                # A link is ELOOP or ENOTDIR, by the system.
                if stat.S_ISLNK(os.stat(step, dir_fd=folder_fd, follow_symlinks=False).st_mode):
                    raise NotADirectoryError(f"{root / folder} is reached by a link") from error
                raise
            os.close(folder_fd)
            folder_fd = below
        yield folder_fd
    finally:
        os.close(folder_fd)

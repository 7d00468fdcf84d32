"""Makes files and folders survive a loss of power: synced first, then given their names."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path


def sync_file(path: Path) -> None:
    """Wait until the bytes of a file are on the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system allows it."""
    with contextlib.suppress(PermissionError):  # some network file systems refuse to open folders
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_durably(path: Path, text: str | Iterable[str], synced: bool = True) -> None:
    """Replace a file by a text, or by pieces of one; readers see the old or the new text, also
    after a loss of power if synced."""
    # Two that write the same file each leave it whole, also on two machines with the same process
    # ids.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.writelines([text] if isinstance(text, str) else text)
        if synced:
            sync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        sync_folder(path.parent)

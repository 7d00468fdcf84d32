"""Compares the files of artifacts and parts with the sizes and digests in their records, and
remembers which were sound.

A whole check reads every byte. It is remembered under a stamp of the files (sizes, times of change,
inodes), which every write through the file system alters, also one that sets the time of
modification back. A stamp cannot reveal a disk that returns other bytes than were written, so a
stage that is about to read an artifact asks for a check of the bytes themselves.
"""

from __future__ import annotations

import contextlib
import errno
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_core.json_files import is_inside
from llm_core.printing import get_logger
from tasks.runtime.artifact import DamagedRecord, digest_file, read_sealed, write_sealed
from tasks.runtime.keys import digest

logger = get_logger("tasks.runtime.soundness")
Files = Sequence[Mapping[str, Any]]
"""Entries of a record: `path`, `size`, `digest`."""

SETTLED_S = 2.0
"""Age from which a stamp is trusted: a younger file may change again under the same time."""
RECENT_S = 600.0
"""A process checks the bytes of the same files once in this time, as a run plans repeatedly."""
HASHING_THREADS = 8
WORTH_SAYING_BYTES = 2_000_000_000


def damage(folder: Path, files: Files, check_digests: bool = True) -> Iterator[str]:
    """A phrase for each damaged file, such as `a.parquet is gone`. Sizes are compared first."""
    right_size = []
    for file in files:
        path = folder / file["path"]
        if not is_inside(file["path"]):
            yield f"{file['path']!r} is not in its folder"
            continue
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            yield f"{file['path']} is gone"
            continue
        if not stat.S_ISREG(found.st_mode):
            yield f"{file['path']} is not a file"
        elif found.st_size != file["size"]:
            yield f"{file['path']} has {found.st_size} bytes, not {file['size']}"
        else:
            right_size.append(file)
    if not check_digests:
        return
    with ThreadPoolExecutor(HASHING_THREADS) as pool:  # hashing releases the interpreter lock
        wrongs = pool.map(lambda file: _wrong_content(folder, file), right_size)
        yield from filter(None, wrongs)


def _wrong_content(folder: Path, file: Mapping[str, Any]) -> str | None:
    try:
        found = digest_file(folder / file["path"])
    except OSError as error:
        if error.errno != errno.EIO:  # a bad block
            raise
        return f"{file['path']} cannot be read ({error.strerror})"
    return None if found == file["digest"] else f"{file['path']} has changed content"


@dataclass(frozen=True)
class _Check:
    stamp: str
    at: float
    found: str | None


_CHECKS: dict[Path, _Check] = {}
"""By folder, the last check of its bytes in this process."""


class Soundness:
    """Remembers which artifacts were found sound, in a file that may be deleted at any time."""

    def __init__(self, memory_file: Path) -> None:
        self._file = memory_file

    def damage(self, folder: Path, files: Files, to_be_read: bool) -> str | None:
        """The first thing that is wrong with an artifact, or None.

        to_be_read: bytes are checked even if an earlier process found the same stamp sound.
        """
        if wrong := next(damage(folder, files, check_digests=False), None):
            return wrong
        stamped, last = _stamp(folder, files), _CHECKS.get(folder)
        stamp = stamped[0] if stamped else ""
        if last and last.stamp == stamp:
            is_recent = time.monotonic() - last.at < RECENT_S
            if is_recent or not to_be_read:
                return last.found
        if not to_be_read and self._known().get(self._name(folder)) == stamp:
            return None
        return next(iter(self.check(folder, files)), None)

    def check(self, folder: Path, files: Files) -> list[str]:
        """Everything that is wrong with an artifact; reads all of its bytes."""
        num_bytes = sum(file["size"] for file in files)
        if num_bytes > WORTH_SAYING_BYTES:
            logger.info("%s: checking the digests of %.1f GB", self._name(folder), num_bytes / 1e9)
        before = _stamp(folder, files)
        found = list(damage(folder, files))
        if before and time.time() - before[1] > SETTLED_S:
            _CHECKS[folder] = _Check(before[0], time.monotonic(), next(iter(found), None))
            self._remember(folder, None if found else before[0])
        return found

    def _known(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, DamagedRecord):
            return read_sealed(self._file)
        return {}

    def _remember(self, folder: Path, stamp: str | None) -> None:
        known, own = self._known(), self._name(folder)
        if known.get(own) == stamp:
            return
        # Artifacts that are gone are forgotten, or the file would grow for ever.
        kept = {n: s for n, s in known.items() if n != own and (self._file.parent / n).exists()}
        try:
            write_sealed(self._file, kept | ({own: stamp} if stamp else {}))
        except OSError as error:  # a store that is read-only, full, or not made yet
            logger.debug(
                "%s was not written (%s); digests are checked again next time", self._file, error
            )

    def _name(self, folder: Path) -> str:
        root = self._file.parent
        return folder.relative_to(root).as_posix() if folder.is_relative_to(root) else str(folder)


def _stamp(folder: Path, files: Files) -> tuple[str, float] | None:
    """A digest of what changes whenever one of the files does, and when the last of them did; None
    where one is gone."""
    try:
        stats = [(file, (folder / file["path"]).stat()) for file in files]
    except (FileNotFoundError, NotADirectoryError):
        return None
    # The time of change is not a user's to set, as that of modification is.
    rows = [
        [f["path"], f["digest"], s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino]
        for f, s in stats
    ]
    return digest(rows), max((s.st_ctime for _, s in stats), default=0.0)

"""Remembers input files by size and modification time: content digests, and models that are loaded
once.

Raw inputs are large and rarely change; reading them all to find that nothing changed would make a
cached run slow. The memory of digests is a JSON file in the store and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tasks.runtime.artifact import DamagedRecord, digest_file, read_sealed, write_sealed

T = TypeVar("T")


def file_stamp(path: Path) -> list[int]:
    """Size and time of the last change, in ns: a file with the same ones is taken for the same."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def load_once(most: int) -> Callable[[Callable[[Path], T]], Callable[[Path], T]]:
    """Keeps what was loaded of the `most` last files, as lru_cache does; reloads a changed file.

    A process may outlive the model it has once read, and results are stored under the content of
    the file that is there.
    """

    def decorate(load: Callable[[Path], T]) -> Callable[[Path], T]:
        @functools.lru_cache(maxsize=most)
        def loaded(path: Path, stamp: tuple[int, ...]) -> T:
            return load(path)

        @functools.wraps(load)
        def look(path: Path) -> T:
            return loaded(path, tuple(file_stamp(path)))

        return look

    return decorate


digest_input = load_once(1 << 16)(digest_file)
"""The content digest of an input file, read once by a process as long as size and time stay the
same: a stage, which names its parts by it, asks again for what its key needed."""


class InputDigests:
    """Digest by (absolute path, size, mtime), kept in one file under the store."""

    def __init__(self, memory_file: Path) -> None:
        self._file = memory_file
        self._known: dict[str, list[object]] = {}
        # Nothing remembered, or a damaged file: digests are computed again. A wrong one would be a
        # wrong key.
        with contextlib.suppress(FileNotFoundError, DamagedRecord):
            self._known = read_sealed(memory_file)

    def of(self, files: Mapping[str, Path]) -> dict[str, str]:
        """{name: content digest}. Raises FileNotFoundError that names the missing path."""
        result, changed = {}, False
        for name, path in sorted(files.items()):
            stamp, place = file_stamp(path), str(path.resolve())
            if self._known.get(place, [])[:2] != stamp:
                self._known[place] = [*stamp, digest_input(path)]
                changed = True
            result[name] = str(self._known[place][2])
        if changed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(self._file, self._known)
        return result

    def remembered(self, path: Path) -> str | None:
        """The digest a file had when it was last read; None if it never was."""
        seen = self._known.get(str(path.resolve()))
        return str(seen[2]) if seen else None

"""Content digests of input files, remembered by size and modification time.

Raw inputs are large and rarely change; reading them all to find that nothing changed would make a cached
run slow. The memory is a JSON file in the store and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from tasks.artifact import digest_file, write_json


class InputDigests:
    """Digest by (absolute path, size, mtime), kept in one file under the store."""

    def __init__(self, memory_file: Path) -> None:
        self._file = memory_file
        self._known: dict[str, list[object]] = {}
        # Nothing remembered, or a torn file from a full disk: digests are computed again.
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            self._known = json.loads(memory_file.read_text("utf-8"))

    def of(self, files: Mapping[str, Path]) -> dict[str, str]:
        """{name: content digest}. Raises FileNotFoundError that names the missing path."""
        result, changed = {}, False
        for name, path in sorted(files.items()):
            stat = path.stat()
            seen = self._known.get(str(path.resolve()))
            if seen is None or seen[:2] != [stat.st_size, stat.st_mtime_ns]:
                seen = [stat.st_size, stat.st_mtime_ns, digest_file(path)]
                self._known[str(path.resolve())] = seen
                changed = True
            result[name] = str(seen[2])
        if changed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, self._known)
        return result

    def remembered(self, path: Path) -> str | None:
        """The digest a file had when it was last read; None if it never was."""
        seen = self._known.get(str(path.resolve()))
        return str(seen[2]) if seen else None

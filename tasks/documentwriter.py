"""How do documents get into files of bounded size, a column at a time?

Rows are held as one list per column, which costs the garbage collector nothing, and become a table of one file at once. A file
is closed when it holds enough: texts, metadata and a fixed cost per row, so that a file of one-word documents has a bound too.
Where the files are cut depends on the rows alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.documentrows import Row
from tasks.documentset import DOCUMENT_SCHEMA, write_table

ROW_BYTES = 256
LEVEL = 1
"""Of zstd: half the time of the usual level for a seventh more bytes, where compression is most of the work."""


class DocumentWriter:
    """Writes rows into `00000.parquet` … and starts a new file when one holds enough."""

    def __init__(self, directory: Path, max_bytes: int, written: Callable[[Row], None]) -> None:
        """written: told the columns of each file, as a row of lists."""
        self._directory, self._max_bytes, self._written = directory, max_bytes, written
        self._num_files = 0
        self._begin_file()

    def add(self, document_id: bytes, row: Row) -> None:
        """Take a row."""
        held = len(row.text) + len(row.metadata) + ROW_BYTES
        if self._ids and self._held_bytes + held > self._max_bytes:
            self.close()
        self._ids.append(document_id)
        for append, value in zip(self._append, row, strict=True):
            append(value)
        self._held_bytes += held

    def close(self) -> None:
        """Write what is held."""
        if not self._ids:
            return
        columns = [self._ids, *(getattr(self._columns, field.name) for field in DOCUMENT_SCHEMA if field.name != "id")]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, DOCUMENT_SCHEMA, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=DOCUMENT_SCHEMA)
        write_table(table, self._directory / f"{self._num_files:05d}.parquet", LEVEL)
        self._written(self._columns)
        self._num_files += 1
        self._begin_file()

    def _begin_file(self) -> None:
        self._ids: list[bytes] = []
        lists: list[Any] = [[] for _ in Row._fields]
        self._columns, self._append = Row(*lists), [one.append for one in lists]
        self._held_bytes = 0

"""How do documents get into files of bounded size, a column at a time?

Rows are held as one list per column and become a table of one file at once. A file is closed when it holds enough: texts,
metadata and a fixed cost per row, so that a file of one-word documents has a bound too. Where the files are cut depends on the
rows alone.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tasks.documentrows import Row
from tasks.documentset import DOCUMENT_SCHEMA, write_table

ROW_BYTES = 256


class DocumentWriter:
    """Writes rows into `00000.parquet` … and starts a new file when one holds enough."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory, self._max_bytes = directory, max_bytes
        self._rows: list[tuple[bytes, Row]] = []
        self._held_bytes = self._num_files = 0

    def add(self, document_id: bytes, row: Row) -> None:
        """Take a row."""
        held = len(row.text) + len(row.metadata) + ROW_BYTES
        if self._rows and self._held_bytes + held > self._max_bytes:
            self.close()
        self._rows.append((document_id, row))
        self._held_bytes += held

    def close(self) -> None:
        """Write what is held."""
        if not self._rows:
            return
        ids, rows = zip(*self._rows, strict=True)
        text, source, source_id, url, language, added_at, metadata, _, _ = zip(*rows, strict=True)
        columns = (ids, text, source, source_id, url, language, added_at, metadata)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, DOCUMENT_SCHEMA, strict=True)]
        write_table(pa.Table.from_arrays(arrays, schema=DOCUMENT_SCHEMA), self._directory / f"{self._num_files:05d}.parquet")
        self._rows, self._held_bytes, self._num_files = [], 0, self._num_files + 1

"""Writes documents to files of bounded size, a column at a time.

Rows are held as one list per column, which costs the garbage collector nothing, and become a table
of one file at once. A file is closed when it holds enough: texts, metadata and a fixed cost per
row, so that a file of one-word documents has a bound too. Where the files are cut depends on the
rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.corpus.documentset import DOCUMENT_SCHEMA, ID, write_table
from tasks.corpus.turns import TURNS, TURNS_COLUMN
from tasks.ingest.documentrows import Row

ROW_BYTES = 256
LEVEL = 1
"""Of zstd: half the time of the usual level for a seventh more bytes, where compression is most of
the work."""


class DocumentWriter:
    """Writes rows into `00000.parquet` … and starts a new file when one holds enough."""

    def __init__(self, directory: Path, max_bytes: int, written: Callable[[Any], None]) -> None:
        """written: told the columns of each file, as a row of lists."""
        self._directory, self._max_bytes, self._written = directory, max_bytes, written
        self._num_files = 0
        self._begin_file()

    def add(self, document_id: bytes, row: Row) -> None:
        held = len(row.text) + len(row.metadata) + ROW_BYTES
        if self._ids and self._held_bytes + held > self._max_bytes:
            self.close()
        self._ids.append(document_id)
        for append, value in zip(self._append, row, strict=True):
            append(value)
        self._held_bytes += held

    def close(self) -> None:
        if not self._ids:
            return
        held, ids = self._columns, pa.py_buffer(b"".join(self._ids))
        made = {
            "id": pa.Array.from_buffers(ID, len(self._ids), [None, ids]),
            "text": join_utf8(held.text, pa.large_string(), np.int64),
            "metadata": join_utf8(held.metadata, pa.string(), np.int32),
        }
        schema = DOCUMENT_SCHEMA
        if any(turns is not None for turns in held.turns):
            schema = schema.append(pa.field(TURNS_COLUMN, TURNS))
        arrays = [
            made[f.name] if f.name in made else pa.array(getattr(held, f.name), f.type)
            for f in schema
        ]
        table = pa.Table.from_arrays(arrays, schema=schema)
        write_table(table, self._directory / f"{self._num_files:05d}.parquet", LEVEL)
        self._written(self._columns)
        self._num_files += 1
        self._begin_file()

    def _begin_file(self) -> None:
        self._ids: list[bytes] = []
        lists: list[Any] = [[] for _ in Row._fields]
        self._columns: Any = Row(*lists)
        self._append = [one.append for one in lists]
        self._held_bytes = 0


def join_utf8(
    values: Sequence[bytes], kind: pa.DataType, offsets: type[np.integer[Any]]
) -> pa.Array:
    """A text column of values that are UTF-8 already: Arrow would look at every byte once more."""
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends.astype(offsets)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)

"""Lists the records that became no document, with the reason and without their text.

`dropped.parquet`: `id` (the one it would have as a document; null where no record was read),
`source`, `source_id`, `outcome` (`dropped`, `quarantined`), `reason` (the drop reason, or the
error), `file`, `line`, `byte_offset`. In the order of the source. Cost: a row of some ten bytes a
record; memory of one row group.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.documentset import ID, find_rows, read_table
from tasks.runtime.artifact import Artifact

DROPPED_FILE = "dropped.parquet"
SCHEMA = pa.schema(
    [
        ("id", ID),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("byte_offset", pa.int64()),
    ]
)
ROWS_PER_GROUP = 1 << 16


class DroppedRecords:
    """Takes rows in the order of `SCHEMA` and writes them in groups; a context that ends with the
    file."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=3)
        self._rows: list[tuple[Any, ...]] = []

    def __enter__(self) -> DroppedRecords:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._writer.close()

    def add(self, *row: Any) -> None:
        self._rows.append(row)
        if len(self._rows) == ROWS_PER_GROUP:
            self._write()

    def _write(self) -> None:
        if not self._rows:
            return
        columns = map(list, zip(*self._rows, strict=True))
        self._writer.write_table(pa.table(list(columns), schema=SCHEMA))
        self._rows = []


def merge_dropped(files: Iterable[Path], path: Path) -> None:
    """The rows of several files in one, in their order."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=3) as writer:
        for file in files:
            with pq.ParquetFile(file) as parquet:
                for group in range(parquet.num_row_groups):
                    writer.write_table(parquet.read_row_group(group, use_threads=False))


def find_dropped(ingest: Artifact, column: str, wanted: pa.Scalar) -> list[dict[str, Any]]:
    """The records whose `id` or `source_id` is the one that is wanted; none where ingest is of an
    older version."""
    found: list[dict[str, Any]] = []
    for file in ingest.files(DROPPED_FILE):
        places = find_rows(file, column, wanted)
        found += read_table(file).take(places).to_pylist() if places else []
    return found

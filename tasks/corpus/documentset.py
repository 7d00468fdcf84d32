"""Documents and their sidecars on disk: schemas, aligned parts, and Arrow buffers for the kernels.

Ingest writes `documents/part-00000.parquet` …; every per-document stage writes one sidecar of the
same name with the same rows in the same order. Positions join them; `id` checks the join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.runtime.artifact import Artifact, ArtifactMismatch, link_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, PartResult

ID = pa.binary(16)
_OWN = [("id", ID), ("text", pa.large_string())]
_TOLD = [(name, pa.string()) for name in ("source", "source_id", "url", "language")]
DOCUMENT_SCHEMA = pa.schema([*_OWN, *_TOLD, ("added_at", pa.string()), ("metadata", pa.string())])
_DECIDED = [("family_id", ID), ("split", pa.string()), ("repeats", pa.int32())]
CORPUS_SCHEMA = pa.schema([*_OWN, *_TOLD, *_DECIDED])
"""What the `documents` stage writes; `language` is the identified one there."""
SIDECAR_FILE = "part.parquet"
"""Name of the one table that `process_part` of a per-document stage writes."""


def document_parts(ingest: Artifact, **sidecars: Artifact) -> list[Part]:
    """One part per file of documents, with the sidecars of the same rows.

    The payload has `documents` and one path per keyword; the digest covers all their contents.
    """
    parts = []
    for file in ingest.files("documents/part-*.parquet"):
        names = {"documents": (ingest, f"documents/{file.name}")}
        names |= {keyword: (artifact, file.name) for keyword, artifact in sidecars.items()}
        payload = {k: str(artifact.file(name)) for k, (artifact, name) in names.items()}
        contents = {k: artifact.file_digest(name) for k, (artifact, name) in names.items()}
        parts.append(Part(file.name, digest(contents), payload))
    return parts


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet table with one chunk per column, so that kernels see one buffer.

    Raises ArtifactMismatch on a damaged file.
    """
    try:
        table = pq.read_table(path, columns=list(columns) if columns else None, use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, OSError) as error:
        # pyarrow raises a bare OSError for a bad file; a number or a subclass means the disk.
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise
        raise ArtifactMismatch(
            f"{path} is damaged ({str(error).splitlines()[0]}); remove its folder and run again"
        ) from error
    return table.combine_chunks()


def find_rows(file: Path, column: str, wanted: pa.Scalar) -> list[int]:
    """The rows of a file whose value in a column is the one that is wanted."""
    equal = pc.fill_null(pc.equal(read_table(file, [column])[column], wanted), False)
    # A comparison of no rows gives a column without chunks, whose indices crash pyarrow 25.
    return pc.indices_nonzero(equal).to_pylist() if len(equal) else []


def read_row(file: Path, row: int, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """One row of a file; only its row group is read. Raises ArtifactMismatch if it is missing."""
    with pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            num_rows = parquet.metadata.row_group(group).num_rows
            if row < num_rows:
                wanted = list(columns) if columns else None
                table = parquet.read_row_group(group, columns=wanted, use_threads=False)
                return table.slice(row, 1).to_pylist()[0]  # type: ignore[no-any-return]
            row -= num_rows
    raise ArtifactMismatch(
        f"{file} has too few rows ({row + 1} missing); rebuild it with force=[ingest]"
    )


def write_table(table: pa.Table, path: Path, level: int = 3) -> None:
    """Parquet with settings that give the same bytes for the same table."""
    # Texts hardly repeat: looking for repeats in them costs a fifth of the time and gains nothing.
    repeating = [field.name for field in table.schema if field.type != pa.large_string()]
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=level,
        use_dictionary=repeating,
        row_group_size=1 << 16,
    )


def check_aligned(documents: pa.Table, sidecar: pa.Table, what: str) -> None:
    """Raise ArtifactMismatch unless both tables hold the same documents in the same order."""
    if not documents["id"].equals(sidecar["id"]):
        raise ArtifactMismatch(f"{what} was made for other documents; rebuild its stage with force")


def link_sidecars(results: Sequence[PartResult], out_dir: Path) -> None:
    """Give each part's table its name in the artifact."""
    for result in results:
        link_file(result.path / SIDECAR_FILE, out_dir / result.name)


def sum_counters(counters: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up counts of the same shape, key by key, in a fixed order."""
    total: dict[str, Any] = {}
    for one in counters:
        for name, value in one.items():
            if isinstance(value, Mapping):
                total[name] = sum_counters([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return dict(sorted(total.items()))


def id_matrix(ids: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """A binary(16) column without nulls as uint8[rows, 16]."""
    array = one_chunk(ids)
    if not len(array):
        return np.zeros((0, 16), np.uint8)
    rows = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)
    return rows[array.offset : array.offset + len(array)].copy()


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array, copied only where it is several; `combine_chunks` always copies."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return (
        chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.array([], column.type)])
    )


def text_buffers(texts: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 bytes (uint8) and offsets (int64, one more than rows) of texts without nulls."""
    array = one_chunk(texts.cast(pa.large_string()))
    _, offsets, data = array.buffers()
    begins = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return values, begins

"""Small artifacts made by hand, so that a stage is tested without the stages before it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.documentset import ID, read_table, write_table
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tasks.runtime.artifact import Artifact

CUTS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())]))
MASKS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("type", pa.string())]))
SPANS = pa.list_(pa.struct([*MASKS.value_type, ("replacement", pa.string())]))
"""Columns of sidecars: what dedup and quality cut, quality masks and PII replaces."""


def empty_dir(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def write_jsonl(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), "utf-8")
    return path


def ingest_files(tmp_path: Path, name: str, paths: Sequence[Path | str], **config: Any) -> Artifact:
    """Ingest into `tmp_path/name` as source `made`."""
    return ingest(
        empty_dir(tmp_path / name),
        SourceConfig(name="made", paths=tuple(map(str, paths)), **config),
    )


def read_documents(artifact: Artifact) -> list[dict[str, Any]]:
    """All rows of all document files."""
    files = artifact.files("documents/part-*.parquet") or artifact.files("part-*.parquet")
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def make_sidecar(
    ingested: Artifact,
    stage: str,
    out_dir: Path,
    columns: Sequence[tuple[str, pa.DataType, Sequence[Any]]],
) -> Artifact:
    """A sidecar with the ids of `ingested` and columns of (name, type, value per document over all
    parts)."""
    out_dir.mkdir(parents=True)
    begin = 0
    for file in ingested.files("documents/part-*.parquet"):
        ids = read_table(file, ["id"])["id"]
        end = begin + len(ids)
        arrays = [
            ids,
            *(pa.chunked_array([pa.array(values[begin:end], kind)]) for _, kind, values in columns),
        ]
        schema = pa.schema([("id", ID), *((name, kind) for name, kind, _ in columns)])
        write_table(pa.table(arrays, schema=schema), out_dir / file.name)
        begin = end
    return Artifact(out_dir, stage, {"read": begin, "kept": begin, "dropped": {}, "quarantined": 0})

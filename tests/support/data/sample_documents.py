"""A documents artifact made of the embedded sample, cut short so that training takes a second."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.documentset import write_table
from tasks.runtime.artifact import Artifact

SAMPLE = Path(__file__).resolve().parents[3] / "data" / "sample" / "sample.jsonl"


def sample_texts(num_documents: int, max_chars: int) -> list[str]:
    rows = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    step = max(1, len(rows) // num_documents)
    return [row["text"][:max_chars] for row in rows[::step][:num_documents]]


def write_documents(
    folder: Path,
    texts: list[str],
    num_files: int = 1,
    validation_every: int = 10,
    repeats: Callable[[int], int] = lambda i: 1,
) -> Artifact:
    """Every `validation_every`-th document is held out; ids are digests of the number and text."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(num_files):
        numbers = range(k, len(texts), num_files)
        ids = [hashlib.md5(f"{i} {texts[i]}".encode()).digest() for i in numbers]
        columns = {
            "id": pa.array(ids, pa.binary(16)),
            "text": pa.array([texts[i] for i in numbers], pa.large_string()),
            "source": pa.array([f"source{i % 3}" for i in numbers], pa.string()),
            "source_id": pa.array([str(i) for i in numbers], pa.string()),
            "url": pa.nulls(len(ids), pa.string()),
            "language": pa.array([None if i % 5 == 0 else "en" for i in numbers], pa.string()),
            "family_id": pa.array(ids, pa.binary(16)),
            "repeats": pa.array(
                [1 if i % validation_every == 1 else repeats(i) for i in numbers], pa.int32()
            ),
            "split": pa.array(
                ["validation" if i % validation_every == 1 else "train" for i in numbers],
                pa.string(),
            ),
        }
        write_table(pa.table(columns), folder / f"part-{k:05d}.parquet")
    return Artifact(folder, "documents")


def stored(documents: Artifact) -> dict[bytes, dict]:
    """Rows of documents by id."""
    rows = [row for file in documents.files("*.parquet") for row in pq.read_table(file).to_pylist()]
    return {row["id"]: row for row in rows}

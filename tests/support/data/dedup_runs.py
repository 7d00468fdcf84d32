"""Deduplication of made-up documents, for its tests."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Set
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.documentset import DOCUMENT_SCHEMA, write_table
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import deduplicate
from tasks.runtime.artifact import Artifact

SAMPLE = Path(__file__).resolve().parents[3] / "data" / "sample"


COUNTED = {"dropped": {}, "quarantined": 0, "cut_bytes": 0, "cut_documents": 0}


def document_id(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def make_parents(
    root: Path, documents: list[dict], num_parts: int = 1, dropped: Set[str] = frozenset()
) -> tuple[Artifact, Artifact]:
    """An ingest and a quality artifact of documents {name, text, [source, added_at]}, split in
    `num_parts` files."""
    (root / "ingest" / "documents").mkdir(parents=True)
    (root / "quality").mkdir()
    size = -(-len(documents) // num_parts)
    for index in range(num_parts):
        some = documents[index * size : (index + 1) * size]
        rows = [
            {
                "id": document_id(d["name"]),
                "source_id": d["name"],
                "source": "test",
                "metadata": "{}",
                "url": None,
                "language": None,
            }
            | {"added_at": None, **{k: v for k, v in d.items() if k not in ("name", "score")}}
            for d in some
        ]
        table = pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)
        write_table(table, root / "ingest" / "documents" / f"part-{index:05}.parquet")
        kept = pa.array([d["name"] not in dropped for d in some], pa.bool_())
        scores = pa.array([d.get("score") for d in some], pa.float32())
        judged = pa.table({"id": table["id"], "score": scores, "kept": kept})
        write_table(judged, root / "quality" / f"part-{index:05}.parquet")
    return Artifact(root / "ingest", "ingest"), Artifact(root / "quality", "quality")


def run(
    root: Path,
    documents: list[dict],
    config: DedupConfig | None = None,
    num_parts: int = 1,
    **kwargs,
) -> tuple[Artifact, dict[str, dict]]:
    """The artifact, and the sidecar rows by document name."""
    root.mkdir(parents=True, exist_ok=True)
    ingest, quality = make_parents(root, documents, num_parts, kwargs.pop("dropped", frozenset()))
    out = root / "dedup"
    out.mkdir()
    artifact = deduplicate(ingest, quality, out, config or DedupConfig(), **kwargs)
    rows = [
        row for file in artifact.files("part-*.parquet") for row in pq.read_table(file).to_pylist()
    ]
    assert [row["id"] for row in rows] == [document_id(d["name"]) for d in documents]
    return artifact, {d["name"]: row for d, row in zip(documents, rows, strict=True)}


@cache
def sample_documents() -> list[dict]:
    with (SAMPLE / "sample.jsonl").open(encoding="utf-8") as lines:
        return [{"name": d["id"], "text": d["text"]} for d in map(json.loads, lines)]


def near_pairs(artifact: Artifact) -> dict[tuple[bytes, bytes], dict]:
    return {
        (row["a"], row["b"]): row
        for row in pq.read_table(artifact.file("pairs.parquet")).to_pylist()
    }


def shingles(text: str, n: int = 5) -> set[tuple[str, ...]]:
    """By definition, for texts of lower-case words and blanks."""
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def similarity(a: str, b: str) -> float:
    one, two = shingles(a), shingles(b)
    return len(one & two) / len(one | two) if one and two else 0.0


def words(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(count)]


def named(texts: list[str]) -> list[dict]:
    return [{"name": f"d{i}", "text": text} for i, text in enumerate(texts)]


def kept(rows: dict[str, dict]) -> set[str]:
    return {name for name, row in rows.items() if row["kept"]}


def mixed_corpus(seed: int = 8, num_bases: int = 60) -> list[dict]:
    """Texts with copies and near copies of them."""
    rng = random.Random(seed)
    texts = []
    for i in range(num_bases):
        base = words(i, rng.randint(3, 90))
        for _ in range(rng.choice([1, 1, 2, 4])):
            text = list(base)
            for _ in range(rng.choice([0, 0, 1, 2])):
                text[rng.randrange(len(text))] = words(rng.getrandbits(30), 1)[0]
            texts.append(" ".join(text))
    return named(texts)

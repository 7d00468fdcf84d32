"""Duplicates go, originals stay, and nobody's order of reading decides which."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.artifact import Artifact
from tasks.dedup import DedupConfig, deduplicate
from tasks.documentset import DOCUMENT_SCHEMA, write_table

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "sample"


def document_id(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def make_parents(
    root: Path, documents: list[dict], num_parts: int = 1, dropped: set[str] = frozenset()
) -> tuple[Artifact, Artifact]:
    """An ingest and a quality artifact of documents {name, text, [source, added_at]}, split in `num_parts` files."""
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
            | {"added_at": None, **{k: v for k, v in d.items() if k != "name"}}
            for d in some
        ]
        table = pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)
        write_table(table, root / "ingest" / "documents" / f"part-{index:05}.parquet")
        kept = pa.array([d["name"] not in dropped for d in some], pa.bool_())
        write_table(pa.table({"id": table["id"], "kept": kept}), root / "quality" / f"part-{index:05}.parquet")
    return Artifact(root / "ingest", "ingest"), Artifact(root / "quality", "quality")


def run(
    root: Path, documents: list[dict], config: DedupConfig | None = None, num_parts: int = 1, **kwargs
) -> tuple[Artifact, dict[str, dict]]:
    """The artifact, and the sidecar rows by document name."""
    root.mkdir(parents=True, exist_ok=True)
    ingest, quality = make_parents(root, documents, num_parts, kwargs.pop("dropped", frozenset()))
    out = root / "dedup"
    out.mkdir()
    artifact = deduplicate(ingest, quality, out, config or DedupConfig(), **kwargs)
    rows = [row for file in artifact.files("part-*.parquet") for row in pq.read_table(file).to_pylist()]
    assert [row["id"] for row in rows] == [document_id(d["name"]) for d in documents]
    return artifact, {d["name"]: row for d, row in zip(documents, rows, strict=True)}


def sample_documents() -> list[dict]:
    with (SAMPLE / "sample.jsonl").open(encoding="utf-8") as lines:
        return [{"name": d["id"], "text": d["text"]} for d in map(json.loads, lines)]


def test_every_exact_duplicate_of_the_sample_shares_a_cluster(tmp_path: Path) -> None:
    _, rows = run(tmp_path, sample_documents())
    truth = [json.loads(line) for line in (SAMPLE / "truth_dups.jsonl").read_text("utf-8").splitlines()]
    for group in (t["ids"] for t in truth if t["type"] == "exact"):
        assert len({rows[name]["cluster_id"] for name in group}) == 1
        assert sum(rows[name]["kept"] for name in group) <= 1

"""Documents with the sidecars of every judge."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from tasks.contamination.config import ContaminationConfig
from tasks.contamination.stage import find_contamination
from tasks.corpus.documentset import ID, write_table
from tasks.runtime.artifact import Artifact
from tests.support.data.judged_documents import NUM
from tests.support.data.make_artifacts import (
    CUTS,
    SPANS,
    empty_dir,
    ingest_files,
    make_sidecar,
    read_documents,
    write_jsonl,
)


def span_of(text: bytes, found: str) -> dict[str, object]:
    start = text.index(found.encode())
    return {"start": start, "end": start + len(found), "type": "EMAIL", "replacement": "<EMAIL>"}


@pytest.fixture(scope="module")
def parents(tmp_path_factory) -> dict[str, Artifact]:
    """60 documents in four files: every tenth is of bad quality, every seventh a duplicate of the
    one before."""
    folder = tmp_path_factory.mktemp("parents")
    texts = [
        f"Document {i} speaks of {'é' * (i % 9)} to user{i}@example.org and others."
        for i in range(NUM)
    ]
    for part in range(4):
        records = [
            {"id": str(i), "text": texts[i], "url": f"u{i}"}
            for i in range(part * 15, part * 15 + 15)
        ]
        write_jsonl(folder / "in" / f"{part}.jsonl", records)
    ingested = ingest_files(folder, "ingest", [folder / "in"])
    ids = [row["id"] for row in read_documents(ingested)]
    good = [i % 10 != 0 for i in range(NUM)]
    survives = [good[i] and not (i % 7 == 0 and good[i - 1]) for i in range(NUM)]
    family = [None if not good[i] else ids[i] if survives[i] else ids[i - 1] for i in range(NUM)]
    reasons = [None if survives[i] or not good[i] else "NEAR_DUPLICATE" for i in range(NUM)]
    drops = [0 if g else (0b100 if i % 20 else 0b101) for i, g in enumerate(good)]
    sizes = [len(text.encode()) for text in texts]
    language = make_sidecar(
        ingested,
        "language",
        folder / "language",
        [("language", pa.string(), ["en", "zh"] * (NUM // 2))],
    )
    quality = make_sidecar(
        ingested,
        "quality",
        folder / "quality",
        [
            ("num_bytes", pa.int64(), sizes),
            ("drops", pa.uint64(), drops),
            ("kept", pa.bool_(), good),
        ],
    )
    rules = [
        {"bit": 0, "name": "A", "drops": True},
        {"bit": 1, "name": "B", "drops": False},
        {"bit": 2, "name": "C", "drops": True},
    ]
    quality = dataclasses.replace(
        quality, counters=quality.counters | {"dropped": {"A": 3, "C": 3}}, metrics={"rules": rules}
    )
    columns = [
        ("family_id", ID, family),
        ("cluster_size", pa.int32(), [1 if g else None for g in good]),
        ("kept", pa.bool_(), survives),
        ("reason", pa.string(), reasons),
        ("cuts", CUTS, [[] if g else None for g in good]),
    ]
    dedup = make_sidecar(ingested, "dedup", folder / "dedup", columns)
    lost = [i for i in range(NUM) if reasons[i]]
    pairs = {
        "a": pa.array([ids[i - 1] for i in lost], ID),
        "b": pa.array([ids[i] for i in lost], ID),
        "jaccard": pa.array([0.8 + i / 1000 for i in lost]),
        "removed": pa.array([True] * len(lost)),
    }
    write_table(pa.table(pairs), dedup.path / "pairs.parquet")
    spans = [[span_of(text.encode(), f"user{i}@example.org")] for i, text in enumerate(texts)]
    pii = make_sidecar(
        ingested,
        "pii",
        folder / "pii",
        [("spans", SPANS, spans), ("kept", pa.bool_(), [True] * NUM)],
    )
    clean = find_contamination(ingested, empty_dir(folder / "contamination"), ContaminationConfig())
    return {
        "ingest": ingested,
        "language": language,
        "quality": quality,
        "dedup": dedup,
        "pii": pii,
        "contamination": clean,
    }

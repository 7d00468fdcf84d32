"""Texts of known languages, and an ingest artifact of any texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tasks.corpus.documentset import DOCUMENT_SCHEMA, write_table
from tasks.runtime.artifact import Artifact

ENGLISH = (
    "The quick brown fox jumps over the lazy dog, and then it goes back to the forest where it"
    " lives."
)
GERMAN = (
    "Der schnelle braune Fuchs springt über den faulen Hund und läuft dann zurück in den Wald, in"
    " dem er wohnt."
)
CHINESE = "今天天气很好，我们一起去公园散步，然后回家吃晚饭。你明天有没有时间？"


def documents_artifact(path: Path, parts: Sequence[Sequence[str]]) -> Artifact:
    """An ingest artifact of these texts, one file per inner list."""
    (path / "documents").mkdir(parents=True)
    number = 0
    for i, texts in enumerate(parts):
        rows = []
        for text in texts:
            rows.append(
                {"id": number.to_bytes(16, "big"), "text": text, "source": "test", "metadata": "{}"}
            )
            number += 1
        write_table(
            pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA),
            path / "documents" / f"part-{i:05d}.parquet",
        )
    return Artifact(path, "ingest")

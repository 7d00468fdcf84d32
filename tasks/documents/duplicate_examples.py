"""Gives examples of removed duplicates: a few pairs with the beginnings of both texts, scrubbed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.corpus.documentset import ID, read_table
from tasks.pii.scrub import scrub
from tasks.runtime.artifact import Artifact

EXAMPLES_FILE = "examples.json"
MAX_EXAMPLES = 3
EXCERPT_CHARS = 300


def example_pairs(dedup: Artifact) -> list[tuple[str, str]]:
    """Up to three removed pairs as hex ids: the least alike, the median and the most alike."""
    pairs = read_table(dedup.file("pairs.parquet"))
    pairs = pairs.filter(pairs["removed"]).sort_by(
        [("jaccard", "ascending"), ("a", "ascending"), ("b", "ascending")]
    )
    if not pairs.num_rows:
        return []
    places = sorted({0, pairs.num_rows // 2, pairs.num_rows - 1})[:MAX_EXAMPLES]
    return [(pairs["a"][i].as_py().hex(), pairs["b"][i].as_py().hex()) for i in places]


def write_excerpts(
    file: Path, documents: pa.Table, survives: pa.ChunkedArray, wanted: Sequence[str]
) -> None:
    """{id: {kept, excerpt}} of wanted documents; scrubbed whole, so no cut hides part of a span."""
    mask = pc.is_in(documents["id"], value_set=pa.array([bytes.fromhex(one) for one in wanted], ID))
    rows = documents.filter(mask)
    found = {
        document_id.hex(): {"kept": kept, "excerpt": scrub(text)[:EXCERPT_CHARS]}
        for document_id, kept, text in zip(
            rows["id"].to_pylist(),
            survives.filter(mask).to_pylist(),
            rows["text"].to_pylist(),
            strict=True,
        )
    }
    file.write_text(json.dumps(found, ensure_ascii=False, sort_keys=True), "utf-8")


def read_examples(files: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """The pairs with their excerpts, from what the parts wrote; the survivor first."""
    found: dict[str, Any] = {}
    for file in files:
        found |= json.loads(file.read_text("utf-8"))
    examples = []
    for pair in pairs:
        survivor, member = sorted((found[one] for one in pair), key=lambda entry: not entry["kept"])
        examples.append({"survivor": survivor["excerpt"], "member": member["excerpt"]})
    return examples

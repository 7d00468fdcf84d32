"""Shows hits with the text of the evaluation item and of the document that holds it.

In: `hits.jsonl`, `hit_items.parquet` and the documents. The texts are raw, for the terminal or the
file of whoever has the data anyway; nothing here is logged or tracked. Cost: hits in their order,
the ids of each part with a hit, and its texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow.parquet as pq

from tasks.contamination.passes import HIT_ITEMS_FILE, HITS_FILE
from tasks.corpus.documentset import read_table
from tasks.runtime.artifact import Artifact, ArtifactMismatch


def list_hits(ingest: Artifact, contamination: Artifact) -> Iterator[dict[str, Any]]:
    """Every hit in the order of documents, with `source_id`, `question`, `answers` and `texts`.

    `texts` is what the document has at the spans.
    Raises ArtifactMismatch where the artifacts do not belong together or are of an older version.
    """
    items = _items(contamination)
    by_document = groupby(_hits(contamination), key=lambda hit: hit["document"])
    none_left: tuple[str | None, Iterator[dict[str, Any]]] = (None, iter(()))
    document, hits = next(by_document, none_left)
    for file in ingest.files("documents/part-*.parquet"):
        if document is None:
            return
        # Hits are in the order of parts and rows, so the next one is in this part or a later one.
        ids = read_table(file, ["id"])["id"].to_pylist()
        rows = {one.hex(): row for row, one in enumerate(ids)}
        if document not in rows:
            continue
        documents = read_table(file, ["text", "source_id"])
        while document in rows:
            row = rows[document]
            text = documents["text"][row].as_py()
            source_id = documents["source_id"][row].as_py()
            yield from (_with_texts(hit, items, text) | {"source_id": source_id} for hit in hits)
            document, hits = next(by_document, none_left)
    if document is not None:
        raise ArtifactMismatch(
            f"{HITS_FILE} names document {document}, which ingest does not have; rebuild with"
            " force=[contamination]"
        )


def hits_of(contamination: Artifact, document: str, text: str) -> list[dict[str, Any]]:
    """The hits of one document, given by its id in hex, with both texts."""
    hits = [hit for hit in _hits(contamination) if hit["document"] == document]
    items = _items(contamination) if hits else {}
    return [_with_texts(hit, items, text) for hit in hits]


def _hits(contamination: Artifact) -> Iterator[dict[str, Any]]:
    with contamination.file(HITS_FILE).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _items(contamination: Artifact) -> dict[tuple[str, int], dict[str, Any]]:
    rows = pq.read_table(contamination.file(HIT_ITEMS_FILE), use_threads=False).to_pylist()
    return {(row["suite"], row["number"]): row for row in rows}


def _with_texts(
    hit: dict[str, Any], items: dict[tuple[str, int], dict[str, Any]], text: str
) -> dict[str, Any]:
    item, raw = items[hit["suite"], hit["number"]], text.encode("utf-8")
    texts = [raw[start:stop].decode("utf-8", "replace") for start, stop in hit["spans"]]
    return {**hit, "question": item["question"], "answers": item["answers"], "texts": texts}

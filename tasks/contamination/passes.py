"""Finds n-grams of suites in one file of documents, and judges which items they amount to.

`find_part` proves every occurrence; `judge_part` runs once it is known in how many documents each
n-gram is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.printing import printable
from tasks.contamination.config import ContaminationConfig
from tasks.contamination.suites import SuiteIndex
from tasks.corpus.documentset import ID, SIDECAR_FILE, read_table, text_buffers, write_table
from tasks.corpus.tally import tally_columns
from tasks.pii.scrub import scrub_excerpt
from tasks.runtime.parts import Part

CONTAMINATED = "CONTAMINATED"

SCHEMA = pa.schema(
    [("id", ID), ("kept", pa.bool_()), ("reason", pa.string()), ("num_hits", pa.int32())]
)

HITS_FILE, HIT_ITEMS_FILE = "hits.jsonl", "hit_items.parquet"
FOUND_FILE, ITEMS_FILE = "found.parquet", "items.parquet"
MAX_EXAMPLES = 5
EXCERPT_BYTES = 120


def clean_part(part: Part, directory: Path, config: ContaminationConfig) -> Mapping[str, Any]:
    """The sidecar of documents that nothing was looked for in."""
    ids = read_table(part.payload["documents"], ["id"])["id"]
    _write_sidecar(ids, np.zeros(len(ids), np.int32), config, directory)
    return {"read": len(ids), "kept": len(ids), "dropped": {}, "quarantined": 0}


def find_part(part: Part, directory: Path, config: ContaminationConfig) -> Mapping[str, Any]:
    """Every proved occurrence of an n-gram: `row, ngram, start, stop` (bytes of the document)."""
    del config
    index = SuiteIndex.load(Path(part.payload["index"]))
    texts = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
    table, unproved = occurrences(*texts, index)
    write_table(table, directory / FOUND_FILE)
    return {"found": table.num_rows, "unproved": unproved}


def occurrences(buf: np.ndarray, begins: np.ndarray, index: SuiteIndex) -> tuple[pa.Table, int]:
    """(proved occurrences as `find_part` writes them, how many were not proved).

    buf: UTF-8 bytes of texts; begins: where each begins, and the end of the last.
    """
    from tasks.kernels.dedup.suite_ngrams import find_ngrams, prove_ngrams
    from tasks.kernels.text.chars import char_classes, fold_table

    tables = (char_classes(), fold_table())
    arrays = {
        name: np.array(getattr(index, name))
        for name in ("text", "hashes", "lengths", "text_starts", "text_stops", "starts")
    }
    found = np.zeros((0, 3), np.int64)
    if len(arrays["hashes"]):
        lengths = np.unique(arrays["lengths"])
        found = find_ngrams(
            buf, begins, lengths, arrays["hashes"], arrays["starts"], index.shift, *tables
        ).reshape(-1, 3)
    spans = np.full((len(found), 2), -1, np.int64)
    # Candidates come in the order of rows: between two borders are those of one document.
    borders = np.flatnonzero(np.diff(found[:, 0], prepend=-1, append=-1))
    texts = (arrays["text"], arrays["text_starts"], arrays["text_stops"], arrays["lengths"])
    for first, last in itertools.pairwise(borders):
        row = found[first, 0]
        firsts, places = (found[first:last, column].copy() for column in (1, 2))
        here = np.empty(2 * (last - first), np.int64)
        prove_ngrams(buf, begins[row], begins[row + 1], firsts, places, *texts, *tables, here)
        spans[first:last] = here.reshape(-1, 2)
    proved = spans[:, 0] >= 0
    columns = {"row": found[:, 0], "ngram": found[:, 2], "start": spans[:, 0], "stop": spans[:, 1]}
    table = pa.table({name: values[proved] for name, values in columns.items()})
    return table, int((~proved).sum())


@dataclass(frozen=True)
class Match:
    """An item that a document holds."""

    row: int
    """Of the document."""
    item: int
    occurrences: np.ndarray
    """Rows of the table of occurrences, by the place in the text."""
    item_frac: float
    """Share of the item's n-grams that the document holds."""
    with_answer: bool


def matches(
    found: pa.Table,
    index: SuiteIndex,
    frequent: np.ndarray,
    num_items: int,
    config: ContaminationConfig,
) -> Iterator[Match]:
    """The items that the occurrences of a file amount to. frequent: whether each n-gram is in too
    many documents to count by itself."""
    rows, ngrams, starts = (found[name].to_numpy() for name in ("row", "ngram", "start"))
    # One entry per occurrence and item that has the n-gram.
    owners = np.diff(index.item_begins)[ngrams]
    occurrence = np.repeat(np.arange(len(rows)), owners)
    # Counts from 0 on within each occurrence, then from where the items of its n-gram begin.
    place = np.arange(len(occurrence)) - np.repeat(np.cumsum(owners) - owners, owners)
    place += index.item_begins[ngrams][occurrence]
    items, reaches = np.asarray(index.items), np.asarray(index.reaches_answer)
    item, answered = items[place], reaches[place]
    # Full: of `ngram_units` units, not the whole of a shorter text.
    is_full = np.asarray(index.lengths) == config.ngram_units
    is_full = np.repeat(is_full, np.diff(index.item_begins))
    num_question, num_answered, num_full = (
        np.bincount(items[which], minlength=num_items) for which in (~reaches, reaches, is_full)
    )
    order = np.lexsort((starts[occurrence], item, rows[occurrence]))
    pair = np.stack([rows[occurrence], item], axis=1)[order]
    is_first = np.any(np.diff(pair, axis=0, prepend=-1) != 0, axis=1)
    borders = np.flatnonzero(np.append(is_first, True))
    for first, last in itertools.pairwise(borders):
        which = order[first:last]
        row, number = int(pair[first, 0]), int(pair[first, 1])
        here = ngrams[occurrence[which]]
        # The share of the question's n-grams, or of the answered form's where it has none itself.
        has_question = num_question[number] > 0
        counted = np.unique(here[answered[which] != has_question])
        share = len(counted) / int(num_question[number] or num_answered[number])
        whole = share >= 1 and num_full[number] > 0
        if share < config.min_item_frac or not (whole or (~frequent[here]).any()):
            continue
        yield Match(row, number, occurrence[which], share, bool(answered[which].any()))


def judge_part(part: Part, directory: Path, config: ContaminationConfig) -> Mapping[str, Any]:
    """The sidecar of one file, its lines of `hits.jsonl`, the items found and a few excerpts."""
    folder = Path(part.payload["index"])
    index, frequent = SuiteIndex.load(folder), np.load(folder / "frequent.npy")
    names = json.loads((folder / "items.json").read_text("utf-8"))
    documents = read_table(part.payload["documents"], ["id", "text", "source"])
    found = read_table(part.payload["found"])
    starts, stops = (found[name].to_numpy() for name in ("start", "stop"))
    num_hits = np.zeros(documents.num_rows, np.int32)
    ids = documents["id"].to_pylist()
    hits, hit_items, hit_rows = [], [], []
    for match in matches(found, index, frequent, len(names), config):
        num_hits[match.row] += 1
        spans = merged_spans(starts[match.occurrences], stops[match.occurrences])
        suite, name, place = names[match.item]
        hit_items.append(match.item)
        hit_rows.append(match.row)
        hits.append(
            {
                "suite": suite,
                "item": name,
                "number": place,
                "document": ids[match.row].hex(),
                "spans": spans,
                "item_frac": round(match.item_frac, 4),
                "with_answer": match.with_answer,
            }
        )
    lines = [printable(json.dumps(hit, ensure_ascii=False)) + "\n" for hit in hits]
    (directory / HITS_FILE).write_text("".join(lines), "utf-8")
    columns = {"item": pa.array(hit_items, pa.int64()), "row": pa.array(hit_rows, pa.int64())}
    write_table(pa.table(columns), directory / ITEMS_FILE)
    _write_sidecar(documents["id"], num_hits, config, directory)
    contaminated = num_hits > 0
    dropped = int(contaminated.sum()) if config.action == "drop" else 0
    hit_documents = documents.filter(pa.array(contaminated))
    examples = _examples(documents, hits, hit_rows)
    (directory / "examples.json").write_text(json.dumps(examples, ensure_ascii=False), "utf-8")
    return {
        "read": len(ids),
        "kept": len(ids) - dropped,
        "dropped": {CONTAMINATED: dropped} if dropped else {},
        "quarantined": 0,
        "contaminated": int(contaminated.sum()),
        "by_source": tally_columns(
            hit_documents["source"], pc.binary_length(hit_documents["text"])
        ),
    }


def merged_spans(starts: np.ndarray, stops: np.ndarray) -> list[list[int]]:
    """Overlapping and touching byte spans as one each; `starts` ascend."""
    spans: list[list[int]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], stop)
        else:
            spans.append([start, stop])
    return spans


def scrubbed_excerpt(text: bytes, start: int, stop: int) -> str:
    """What stands around a span, personal data replaced."""
    high = min(stop, start + 2 * EXCERPT_BYTES) + EXCERPT_BYTES
    return scrub_excerpt(text, max(0, start - EXCERPT_BYTES), min(len(text), high))


def _write_sidecar(
    ids: pa.ChunkedArray, num_hits: np.ndarray, config: ContaminationConfig, directory: Path
) -> None:
    drops = (num_hits > 0) & (config.action == "drop")
    reasons = pa.array([CONTAMINATED if drop else None for drop in drops], pa.string())
    columns = [ids, pa.array(~drops), reasons, pa.array(num_hits, pa.int32())]
    write_table(pa.table(columns, schema=SCHEMA), directory / SIDECAR_FILE)


def _examples(
    documents: pa.Table, hits: Sequence[Mapping[str, Any]], rows: Sequence[int]
) -> list[dict[str, str]]:
    """Scrubbed excerpts of the first hit of a few documents."""
    found: dict[int, dict[str, str]] = {}
    for hit, row in zip(hits, rows, strict=True):
        if row not in found and len(found) < MAX_EXAMPLES:
            start, stop = hit["spans"][0]
            excerpt = scrubbed_excerpt(documents["text"][row].as_py().encode("utf-8"), start, stop)
            found[row] = {name: hit[name] for name in ("suite", "item", "document")}
            found[row]["excerpt"] = excerpt
    return list(found.values())

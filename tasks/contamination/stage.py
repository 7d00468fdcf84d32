"""Which documents hold what the model will be asked? N-gram overlap of documents with evaluation
suites.

A document that shares an n-gram of 13 units (words; single letters in scripts without spaces) with
an item of a suite is contaminated (Brown et al. 2020, "Language Models are Few-Shot Learners",
appendix C), whatever the case, punctuation or white space. Items shorter than that are looked for
as a whole (`tasks.contamination.suites`). An n-gram in more than `max_ngram_documents` documents is
a phrase of the language, as there, unless the document holds the whole of a longer item.
`min_item_frac` asks for a larger share of an item's n-grams than one of them.

In: id, text; suites are input files. Out: a sidecar `id, kept, reason, num_hits`; `hits.jsonl`:
suite, item and its number, document, byte offsets in the original text, and how much of the item is
there; `hit_items.parquet`: the texts of items that were found, so that a hit can be shown when the
suite's file is gone (`tasks.contamination.hits`). With `action: report` everything is kept. Without
suites, the default, nothing is read and nothing found. Cost: one walk over the corpus, a look-up
per unit and n-gram length; memory of one part plus the suites' n-grams. Left out: paraphrases,
translations, and answers without their question.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError
from llm_core.printing import printable
from tasks.contamination.suites import Item, SuiteConfig, SuiteIndex, index_items, read_items
from tasks.corpus.documentset import (
    ID,
    SIDECAR_FILE,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    text_buffers,
    write_table,
)
from tasks.corpus.selection import check_text_files
from tasks.corpus.tally import largest, tally_documents
from tasks.pii.scrub import scrub_excerpt
from tasks.runtime.artifact import Artifact, check_accounting, digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, PartResult, RunParts, scratch_dir, serial
from tasks.runtime.stage import StageFailure

CONTAMINATED = "CONTAMINATED"
SCHEMA = pa.schema(
    [("id", ID), ("kept", pa.bool_()), ("reason", pa.string()), ("num_hits", pa.int32())]
)
HITS_FILE, HIT_ITEMS_FILE = "hits.jsonl", "hit_items.parquet"
HIT_ITEMS_SCHEMA = pa.schema(
    [
        ("suite", pa.string()),
        ("number", pa.int64()),
        ("item", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
    ]
)
FOUND_FILE, ITEMS_FILE = "found.parquet", "items.parquet"
MAX_EXAMPLES = 5
EXCERPT_BYTES = 120


@dataclass(frozen=True)
class ContaminationConfig:
    """Which suites are looked for, and what counts as found."""

    suites: dict[str, SuiteConfig] = field(default_factory=dict)
    """Evaluation suites by name."""
    action: Literal["drop", "report"] = "drop"
    """drop: contaminated documents go. report: they stay, and are listed."""
    ngram_units: int = 13
    """Units of an n-gram."""
    min_units: int = 8
    """Items, with their answer, of fewer units are not looked for: they are in many texts by
    chance."""
    max_ngram_documents: int | None = 10
    """N-grams in more documents count only where the whole of a longer item is there; null: all
    count."""
    min_item_frac: float = 0.0
    """Least share of an item's n-grams that a document must hold; 0: one of them is enough."""

    def __post_init__(self) -> None:
        if not 2 <= self.ngram_units <= 100:
            raise ConfigError(
                f"ngram_units ({self.ngram_units}) must be from 2 to 100; the usual value is 13"
            )
        if not 1 <= self.min_units <= self.ngram_units:
            raise ConfigError(
                f"min_units ({self.min_units}) must be from 1 to ngram_units ({self.ngram_units});"
                " try 8"
            )
        if self.max_ngram_documents is not None and self.max_ngram_documents < 1:
            raise ConfigError(
                f"max_ngram_documents ({self.max_ngram_documents}) must be at least 1; null counts"
                " every n-gram"
            )
        if not 0 <= self.min_item_frac <= 1:
            raise ConfigError(
                f"min_item_frac ({self.min_item_frac}) must be from 0 to 1; 0 asks for one n-gram"
            )

    def input_files(self) -> dict[str, Path]:
        """{suite: file}. Raises ConfigError where one is not there, or has no reader."""
        for name, suite in self.suites.items():
            check_text_files(f"contamination.suites.{name}.path", (suite.path,))
        return {name: suite.path for name, suite in self.suites.items()}


def find_contamination(
    ingest: Artifact, out_dir: Path, config: ContaminationConfig, run_parts: RunParts = serial
) -> Artifact:
    """Find documents that hold items of the suites. Raises ConfigError for an unfit suite,
    StageFailure if nothing is left."""
    parts = document_parts(ingest)
    items = [
        item for name in sorted(config.suites) for item in read_items(name, config.suites[name])
    ]
    folder = scratch_dir(out_dir)
    index = index_items(items, config.ngram_units, config.min_units)
    index.save(folder)
    suites_digest = digest([digest_file(file) for file in sorted(folder.glob("*.npy"))])
    if not config.suites:
        results = run_parts(
            clean_part, [_passed("clean", part, {}, {}) for part in parts], config, out_dir
        )
        link_sidecars(results, out_dir)
        (out_dir / HITS_FILE).touch()
        _write_items([], [], [], out_dir)
        return _artifact(
            out_dir,
            config,
            results,
            {"suites": {}, "documents": 0, "ignored_ngrams": 0, "by_source": {}, "examples": []},
        )

    paths = {"index": str(folder)}
    found = run_parts(
        find_part,
        [_passed("find", part, {"suites": suites_digest}, paths) for part in parts],
        config,
        out_dir,
    )
    documents_of = np.zeros(len(index.hashes), np.int64)
    for result in found:
        table = read_table(result.path / FOUND_FILE, ["row", "ngram"])
        pairs = np.unique(np.stack([table["ngram"].to_numpy(), table["row"].to_numpy()]), axis=1)
        documents_of += np.bincount(pairs[0], minlength=len(documents_of))
    frequent = documents_of > (config.max_ngram_documents or documents_of.max(initial=0))
    np.save(folder / "frequent.npy", frequent)
    numbers = _numbers(items)
    names = [[item.suite, item.name, number] for item, number in zip(items, numbers, strict=True)]
    (folder / "items.json").write_text(json.dumps(names), "utf-8")

    known = {
        "suites": suites_digest,
        "frequent": digest_file(folder / "frequent.npy"),
        "items": digest_file(folder / "items.json"),
    }
    judging = [
        _passed("judge", part, known, paths | {"found": str(result.path / FOUND_FILE)})
        for part, result in zip(parts, found, strict=True)
    ]
    results = run_parts(judge_part, judging, config, out_dir)
    link_sidecars(results, out_dir)
    with (out_dir / HITS_FILE).open("wb") as stream:
        for result in results:
            stream.write((result.path / HITS_FILE).read_bytes())
    _write_items(items, numbers, results, out_dir)
    return _artifact(out_dir, config, results, _metrics(items, index, frequent, results))


def clean_part(part: Part, directory: Path, config: ContaminationConfig) -> Mapping[str, Any]:
    """The sidecar of documents that nothing was looked for in."""
    ids = read_table(part.payload["documents"], ["id"])["id"]
    _write_sidecar(ids, np.zeros(len(ids), np.int32), config, directory)
    return {"read": len(ids), "kept": len(ids), "dropped": {}, "quarantined": 0}


def find_part(part: Part, directory: Path, config: ContaminationConfig) -> Mapping[str, Any]:
    """Every proved occurrence of a suite's n-gram in one file: `row, ngram, start, stop` (bytes of
    the document)."""
    from tasks.kernels.dedup.suite_ngrams import find_ngrams, prove_ngrams
    from tasks.kernels.text.chars import char_classes, fold_table

    del config
    index = SuiteIndex.load(Path(part.payload["index"]))
    tables = (char_classes(), fold_table())
    buf, begins = text_buffers(read_table(part.payload["documents"], ["text"])["text"])
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
    borders = np.flatnonzero(np.diff(found[:, 0], prepend=-1, append=-1))
    texts = (arrays["text"], arrays["text_starts"], arrays["text_stops"], arrays["lengths"])
    for first, last in itertools.pairwise(borders):
        row, firsts, places = (
            found[first, 0],
            found[first:last, 1].copy(),
            found[first:last, 2].copy(),
        )
        here = np.empty(2 * (last - first), np.int64)
        prove_ngrams(buf, begins[row], begins[row + 1], firsts, places, *texts, *tables, here)
        spans[first:last] = here.reshape(-1, 2)
    proved = spans[:, 0] >= 0
    columns = {"row": found[:, 0], "ngram": found[:, 2], "start": spans[:, 0], "stop": spans[:, 1]}
    write_table(
        pa.table({name: values[proved] for name, values in columns.items()}), directory / FOUND_FILE
    )
    return {"found": int(proved.sum()), "unproved": int((~proved).sum())}


def judge_part(part: Part, directory: Path, config: ContaminationConfig) -> Mapping[str, Any]:
    """The sidecar of one file, its lines of `hits.jsonl`, and for metrics which items were found
    and excerpts of a few."""
    folder = Path(part.payload["index"])
    index, frequent = SuiteIndex.load(folder), np.load(folder / "frequent.npy")
    names = json.loads((folder / "items.json").read_text("utf-8"))
    documents = read_table(part.payload["documents"], ["id", "text", "source"])
    found = read_table(part.payload["found"])
    rows, ngrams, starts, stops = (
        found[name].to_numpy() for name in ("row", "ngram", "start", "stop")
    )

    # One entry per occurrence and item that has the n-gram.
    owners = np.diff(index.item_begins)[ngrams]
    occurrence = np.repeat(np.arange(len(rows)), owners)
    place = (
        np.arange(len(occurrence))
        - np.repeat(np.cumsum(owners) - owners, owners)
        + index.item_begins[ngrams][occurrence]
    )
    item, answered = np.asarray(index.items)[place], np.asarray(index.reaches_answer)[place]
    sizes = item_sizes(index, len(names), config.ngram_units)
    order = np.lexsort((starts[occurrence], item, rows[occurrence]))
    pair = np.stack([rows[occurrence], item], axis=1)[order]
    borders = np.flatnonzero(
        np.append(np.any(np.diff(pair, axis=0, prepend=-1) != 0, axis=1), True)
    )
    num_hits = np.zeros(documents.num_rows, np.int32)
    ids = documents["id"].to_pylist()
    hits, hit_items, hit_rows = [], [], []
    for first, last in itertools.pairwise(borders):
        which = order[first:last]
        row, number = int(pair[first, 0]), int(pair[first, 1])
        here = ngrams[occurrence[which]]
        share = item_share(here, answered[which], sizes[number])
        whole = share >= 1 and sizes[number].has_full_ngram
        if share < config.min_item_frac or not (whole or (~frequent[here]).any()):
            continue
        num_hits[row] += 1
        spans = merged_spans(starts[occurrence[which]], stops[occurrence[which]])
        suite, name, place = names[number]
        hit_items.append(number)
        hit_rows.append(row)
        hits.append(
            {
                "suite": suite,
                "item": name,
                "number": place,
                "document": ids[row].hex(),
                "spans": spans,
                "item_frac": round(share, 4),
                "with_answer": bool(answered[which].any()),
            }
        )
    (directory / HITS_FILE).write_text(
        "".join(printable(json.dumps(hit, ensure_ascii=False)) + "\n" for hit in hits), "utf-8"
    )
    write_table(
        pa.table({"item": pa.array(hit_items, pa.int64()), "row": pa.array(hit_rows, pa.int64())}),
        directory / ITEMS_FILE,
    )
    _write_sidecar(documents["id"], num_hits, config, directory)
    contaminated = num_hits > 0
    dropped = int(contaminated.sum()) if config.action == "drop" else 0
    hit_documents = documents.filter(pa.array(contaminated))
    lengths = pc.binary_length(hit_documents["text"].cast(pa.large_binary())).to_pylist()
    examples = _examples(documents, hits, hit_rows)
    (directory / "examples.json").write_text(json.dumps(examples, ensure_ascii=False), "utf-8")
    return {
        "read": len(ids),
        "kept": len(ids) - dropped,
        "dropped": {CONTAMINATED: dropped} if dropped else {},
        "quarantined": 0,
        "contaminated": int(contaminated.sum()),
        "by_source": tally_documents(hit_documents["source"].to_pylist(), lengths),
    }


@dataclass(frozen=True)
class ItemSize:
    """How many n-grams an item has, in its question and reaching into its answer."""

    question: int
    answered: int
    has_full_ngram: bool


def item_sizes(index: SuiteIndex, num_items: int, ngram_units: int) -> list[ItemSize]:
    """The size of each item. Full: of `ngram_units` units, not the whole of a shorter text."""
    answered = np.asarray(index.reaches_answer)
    full = np.repeat(np.asarray(index.lengths) == ngram_units, np.diff(index.item_begins))
    of = [
        np.bincount(np.asarray(index.items)[which], minlength=num_items)
        for which in (~answered, answered, full)
    ]
    return [ItemSize(int(q), int(a), bool(f)) for q, a, f in zip(*of, strict=True)]


def item_share(ngrams: np.ndarray, answered: np.ndarray, size: ItemSize) -> float:
    """Share of an item's n-grams among those found: of its question, or of its answered form where
    the question has none."""
    counted = np.unique(ngrams[~answered] if size.question else ngrams[answered])
    return len(counted) / (size.question or size.answered)


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
    table = pa.table(
        [ids, pa.array(~drops), reasons, pa.array(num_hits, pa.int32())], schema=SCHEMA
    )
    write_table(table, directory / SIDECAR_FILE)


def _passed(purpose: str, part: Part, reads: Mapping[str, str], paths: Mapping[str, str]) -> Part:
    """A part for one of the passes, named by all it reads."""
    return Part(
        part.name,
        digest({"pass": purpose, "part": part.digest, **reads}),
        {**part.payload, **paths},
    )


def _examples(
    documents: pa.Table, hits: Sequence[Mapping[str, Any]], rows: Sequence[int]
) -> list[dict[str, str]]:
    """Scrubbed excerpts of the first hit of a few documents."""
    found: dict[int, dict[str, str]] = {}
    for hit, row in zip(hits, rows, strict=True):
        if row not in found and len(found) < MAX_EXAMPLES:
            start, stop = hit["spans"][0]
            excerpt = scrubbed_excerpt(documents["text"][row].as_py().encode("utf-8"), start, stop)
            found[row] = {
                "suite": hit["suite"],
                "item": hit["item"],
                "document": hit["document"],
                "excerpt": excerpt,
            }
    return list(found.values())


def _numbers(items: Sequence[Item]) -> list[int]:
    """The place of each item in its suite, from 1: names of items may repeat."""
    suites = itertools.groupby(item.suite for item in items)
    return [number for _, suite in suites for number, _ in enumerate(suite, start=1)]


def _write_items(
    items: Sequence[Item], numbers: Sequence[int], results: Sequence[PartResult], out_dir: Path
) -> None:
    """The texts of the items that were found."""
    found = sorted(
        {
            place
            for result in results
            for place in read_table(result.path / ITEMS_FILE)["item"].to_pylist()
        }
    )
    rows = [
        {
            "suite": items[place].suite,
            "number": numbers[place],
            "item": items[place].name,
            "question": _utf8(items[place].question),
            "answers": [_utf8(answer) for answer in items[place].answers],
        }
        for place in found
    ]
    write_table(pa.Table.from_pylist(rows, schema=HIT_ITEMS_SCHEMA), out_dir / HIT_ITEMS_FILE)


def _utf8(text: str) -> str:
    """The text as it was looked for: what is no Unicode is replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _metrics(
    items: Sequence[Item], index: SuiteIndex, frequent: np.ndarray, results: Sequence[PartResult]
) -> dict[str, Any]:
    tables = [read_table(result.path / ITEMS_FILE) for result in results]
    found = np.concatenate([np.zeros(0, np.int64), *(table["item"].to_numpy() for table in tables)])
    part = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    rows = np.concatenate([np.zeros(0, np.int64), *(table["row"].to_numpy() for table in tables)])
    suite_of = np.array([item.suite for item in items], object)
    searchable = np.zeros(len(items), bool)
    searchable[np.unique(np.asarray(index.items))] = True
    suites = {}
    for name in sorted(set(suite_of)):
        mine = suite_of[found] == name
        suites[name] = {
            "items": int((suite_of == name).sum()),
            "too_short": int((~searchable[suite_of == name]).sum()),
            "hit_items": len(np.unique(found[mine])),
            "hit_documents": len(set(zip(part[mine].tolist(), rows[mine].tolist(), strict=True))),
        }
    examples = [
        e
        for result in results
        for e in json.loads((result.path / "examples.json").read_text("utf-8"))
    ]
    by_source = sum_counters([result.counters["by_source"] for result in results])
    return {
        "suites": suites,
        "documents": sum(result.counters["contaminated"] for result in results),
        "ngrams": len(index.hashes),
        "ignored_ngrams": int(frequent.sum()),
        "by_source": largest(by_source),
        "examples": examples[:MAX_EXAMPLES],
    }


def _artifact(
    out_dir: Path,
    config: ContaminationConfig,
    results: Sequence[PartResult],
    metrics: dict[str, Any],
) -> Artifact:
    names = ("read", "kept", "dropped", "quarantined")
    counters = sum_counters([{name: result.counters[name] for name in names} for result in results])
    check_accounting("contamination", counters)
    if counters["read"] and not counters["kept"]:
        raise StageFailure(
            f"contamination dropped all {counters['read']} documents ({CONTAMINATED}); check the"
            " suites, raise contamination.min_item_frac, or take contamination.action=report"
        )
    return Artifact(out_dir, "contamination", counters, metrics | {"action": config.action})

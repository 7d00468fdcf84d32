"""Finds documents that hold items of evaluation suites, by n-gram overlap.

A document that shares an n-gram of 13 units (words; single letters in scripts without spaces) with
an item of a suite is contaminated (Brown et al. 2020, "Language Models are Few-Shot Learners",
appendix C), whatever the case, punctuation or white space. Items shorter than that are looked for
as a whole (`tasks.contamination.suites`). Files are read in `tasks.contamination.passes`. An n-gram
in more than `max_ngram_documents` documents is a phrase of the language, as there, unless the
document holds the whole of a longer item. `min_item_frac` asks for a larger share of an item's
n-grams than one of them.

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
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.contamination.config import ContaminationConfig
from tasks.contamination.passes import (
    CONTAMINATED,
    FOUND_FILE,
    HIT_ITEMS_FILE,
    HITS_FILE,
    ITEMS_FILE,
    MAX_EXAMPLES,
    clean_part,
    find_part,
    judge_part,
)
from tasks.contamination.suites import Item, SuiteIndex, index_items, read_items
from tasks.corpus.documentset import (
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    write_table,
)
from tasks.corpus.tally import largest
from tasks.runtime.artifact import Artifact, check_accounting, digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import PartResult, RunParts, parts_of_pass, scratch_dir, serial
from tasks.runtime.stage import StageFailure

_ITEM = [("suite", pa.string()), ("number", pa.int64()), ("item", pa.string())]
HIT_ITEMS_SCHEMA = pa.schema(
    [*_ITEM, ("question", pa.string()), ("answers", pa.list_(pa.string()))]
)
NOTHING_FOUND = {"suites": {}, "documents": 0, "ignored_ngrams": 0, "by_source": {}, "examples": []}


def find_contamination(
    ingest: Artifact, out_dir: Path, config: ContaminationConfig, run_parts: RunParts = serial
) -> Artifact:
    """Find documents that hold items of the suites.

    Raises ConfigError for an unfit suite, StageFailure if nothing is left.
    """
    parts = document_parts(ingest)
    items = [
        item for name in sorted(config.suites) for item in read_items(name, config.suites[name])
    ]
    folder = scratch_dir(out_dir)
    index = index_items(items, config.ngram_units, config.min_units)
    index.save(folder)
    # Only these: a killed run leaves other arrays here, and its finished parts would not be found.
    suites_digest = digest([digest_file(folder / f"{a.name}.npy") for a in fields(index)])
    if not config.suites:
        results = run_parts(clean_part, parts_of_pass(parts, "clean", {}), config, out_dir)
        link_sidecars(results, out_dir)
        (out_dir / HITS_FILE).touch()
        _write_items([], [], [], out_dir)
        return _artifact(out_dir, config, results, NOTHING_FOUND)

    paths, known = {"index": str(folder)}, {"suites": suites_digest}
    found = run_parts(find_part, parts_of_pass(parts, "find", paths, known), config, out_dir)
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

    known |= {name: digest_file(folder / name) for name in ("frequent.npy", "items.json")}
    # What a part found follows from the part and the suites, so it is not named once more.
    judging = [
        replace(part, payload={**part.payload, "found": str(result.path / FOUND_FILE)})
        for part, result in zip(parts_of_pass(parts, "judge", paths, known), found, strict=True)
    ]
    results = run_parts(judge_part, judging, config, out_dir)
    link_sidecars(results, out_dir)
    with (out_dir / HITS_FILE).open("wb") as stream:
        for result in results:
            stream.write((result.path / HITS_FILE).read_bytes())
    _write_items(items, numbers, results, out_dir)
    return _artifact(out_dir, config, results, _metrics(items, index, frequent, results))


def _numbers(items: Sequence[Item]) -> list[int]:
    """The place of each item in its suite, from 1: names of items may repeat."""
    suites = itertools.groupby(item.suite for item in items)
    return [number for _, suite in suites for number, _ in enumerate(suite, start=1)]


def _write_items(
    items: Sequence[Item], numbers: Sequence[int], results: Sequence[PartResult], out_dir: Path
) -> None:
    """The texts of the items that were found."""
    tables = [read_table(result.path / ITEMS_FILE) for result in results]
    found = sorted({place for table in tables for place in table["item"].to_pylist()})
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
    """The text as it was looked for: what is not a Unicode is replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _metrics(
    items: Sequence[Item], index: SuiteIndex, frequent: np.ndarray, results: Sequence[PartResult]
) -> dict[str, Any]:
    tables = [read_table(result.path / ITEMS_FILE) for result in results]
    hits = pa.concat_tables(tables)
    found, rows = hits["item"].to_numpy(), hits["row"].to_numpy()
    part = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
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
    examples: list[dict[str, str]] = []
    for result in results:
        examples += json.loads((result.path / "examples.json").read_text("utf-8"))
    by_source = sum_counters(result.counters["by_source"] for result in results)
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
    metrics: Mapping[str, Any],
) -> Artifact:
    names = ("read", "kept", "dropped", "quarantined")
    counters = sum_counters({name: result.counters[name] for name in names} for result in results)
    check_accounting("contamination", counters)
    if counters["read"] and not counters["kept"]:
        raise StageFailure(
            f"contamination dropped all {counters['read']} documents ({CONTAMINATED}); check the"
            " suites, raise contamination.min_item_frac, or set contamination.action=report"
        )
    return Artifact(out_dir, "contamination", counters, {**metrics, "action": config.action})

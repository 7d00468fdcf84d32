"""Gathers the texts that models of the scores stage may learn from: one pool per file.

A pool holds `score, positive, language, hash, num_bytes, units` of the candidates in one file, no
more of each score than the limit, which bounds what is kept on disk. The smallest hashes are taken
(`tasks.scores.learning` says why).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.corpus.conditions import chosen_rows, condition_table
from tasks.corpus.documentset import SIDECAR_FILE, check_aligned, read_table, write_table
from tasks.readers.textfiles import texts_of_file
from tasks.runtime.artifact import digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part
from tasks.scores.classifier import ClassifierConfig
from tasks.scores.config import ScoresConfig
from tasks.scores.perplexity import ANY_LANGUAGE, PerplexityConfig
from tasks.scores.unit_rows import UnitRows

POOL = pa.schema(
    [
        ("score", pa.string()),
        ("positive", pa.bool_()),
        ("language", pa.string()),
        ("hash", pa.uint64()),
        ("num_bytes", pa.int64()),
        ("units", pa.large_list(pa.uint64())),
    ]
)


def gather_part(part: Part, directory: Path, config: ScoresConfig) -> Mapping[str, Any]:
    """The candidates in one file of documents, or in one file of texts."""
    found = list(
        _from_file(part, config) if "file" in part.payload else _from_documents(part, config)
    )
    table = pa.concat_tables([POOL.empty_table(), *found]).combine_chunks()
    write_table(table, directory / SIDECAR_FILE)
    return {"texts": table.num_rows}


def document_parts(parts: Sequence[Part], learning: Mapping[str, Any]) -> list[Part]:
    conditions = ("positives", "reference")
    if not any(getattr(one, name, None) for one in learning.values() for name in conditions):
        return []
    return [
        Part(part.name, digest({"pass": "gather", "part": part.digest}), part.payload)
        for part in parts
    ]


def file_parts(config: ScoresConfig) -> list[Part]:
    parts = []
    for role, file in config.input_files().items():
        name, what, *_ = role.split("/")
        if what in ("positive_files", "negative_files", "reference_files"):
            payload = {"file": str(file), "score": name, "positive": what != "negative_files"}
            # By content, not by place: a file that was moved is the same.
            about = {"content": digest_file(file), "format": file.suffixes, **payload, "file": ""}
            parts.append(Part(role, digest({"pass": "gather", **about}), payload))
    return parts


def _from_documents(part: Part, config: ScoresConfig) -> Iterator[pa.Table]:
    documents = read_table(part.payload["documents"])
    labels = read_table(part.payload["language"], ["id", "language"])
    check_aligned(documents, labels, "the language sidecar")
    table = condition_table(documents, labels["language"])
    languages = np.array(labels["language"].to_pylist(), object)
    rows_of = functools.cache(lambda most_bytes: UnitRows.of_texts(documents["text"], most_bytes))

    def chosen(condition: str | None, where: str) -> np.ndarray:
        if not condition:
            return np.zeros(documents.num_rows, bool)
        return chosen_rows(table, condition, where)

    for name, classifier in config.classifiers.items():
        if not classifier.positives and not classifier.negatives:
            continue
        where = f"scores.classifiers.{name}"
        good = chosen(classifier.positives, f"{where}.positives")
        bad = chosen(classifier.negatives, f"{where}.negatives")
        bad = ~good if classifier.rest_is_negative else bad
        rows = rows_of(classifier.prefix_bytes)
        for positive, which in ((True, good), (False, bad)):
            yield _class_pool(name, positive, rows.take(np.flatnonzero(which)), classifier)
    for name, perplexity in config.perplexities.items():
        if perplexity.reference:
            where = f"scores.perplexities.{name}.reference"
            rows_chosen = np.flatnonzero(chosen(perplexity.reference, where))
            groups = languages[rows_chosen]
            if not perplexity.per_language:
                groups = np.full(len(groups), ANY_LANGUAGE, object)
            rows = rows_of(perplexity.prefix_bytes).take(rows_chosen)
            yield _reference_pool(name, groups, rows, perplexity)


def _from_file(part: Part, config: ScoresConfig) -> Iterator[pa.Table]:
    name, file = part.payload["score"], Path(part.payload["file"])
    one = config.classifiers[name] if name in config.classifiers else config.perplexities[name]
    texts = list(texts_of_file(file, one.text_column))
    rows = UnitRows.of_texts(pa.array(texts, pa.large_string()), one.prefix_bytes)
    if isinstance(one, ClassifierConfig):
        yield _class_pool(name, part.payload["positive"], rows, one)
    else:
        language = (one.reference_language if one.per_language else None) or ANY_LANGUAGE
        yield _reference_pool(name, np.full(len(rows), language, object), rows, one)


def _class_pool(name: str, positive: bool, rows: UnitRows, config: ClassifierConfig) -> pa.Table:
    """The rows with the smallest keys, each once."""
    keys, first = np.unique(rows.keys(config.seed), return_index=True)
    there = np.flatnonzero(np.diff(rows.begins)[first] > 0)[: config.max_documents]
    languages = np.full(len(there), ANY_LANGUAGE, object)
    return _pool(name, positive, languages, keys[there], rows.take(first[there]))


def _reference_pool(
    name: str, languages: np.ndarray, rows: UnitRows, config: PerplexityConfig
) -> pa.Table:
    """The rows with the smallest keys of each language, each once, up to the limit."""
    keys, kept = rows.keys(config.seed), [np.zeros(0, np.int64)]
    for language in sorted(set(languages)):
        mine = np.flatnonzero((languages == language) & (np.diff(rows.begins) > 0))
        _, first = np.unique(keys[mine], return_index=True)
        mine = mine[first]
        kept.append(mine[with_room(rows.num_bytes[mine], config.max_reference_bytes)])
    which = np.concatenate(kept)
    return _pool(name, True, languages[which], keys[which], rows.take(which))


def with_room(sizes: np.ndarray, most: int) -> np.ndarray:
    """Which of these, one after another, begin before the limit; the last may pass it, so one long
    text alone is still taken."""
    return np.cumsum(sizes) - sizes < most


def _pool(
    name: str, positive: bool, languages: np.ndarray, keys: np.ndarray, rows: UnitRows
) -> pa.Table:
    columns = [
        pa.array([name] * len(rows), pa.string()),
        pa.array([positive] * len(rows), pa.bool_()),
        pa.array(languages, pa.string()),
        pa.array(keys, pa.uint64()),
        pa.array(rows.num_bytes, pa.int64()),
        rows.to_lists(),
    ]
    return pa.table(columns, schema=POOL)

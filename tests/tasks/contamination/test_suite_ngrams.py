"""Hits are those of comparing every n-gram, whatever the parts, workers and bytes around."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contamination.suites import Item, index_items
from tasks.kernels.dedup.suite_ngrams import find_ngrams, text_ngrams
from tasks.kernels.text.chars import char_classes, fold_table
from tasks.runtime.parts import PartRunner, thread_executor
from tests.support.data.any_bytes import BYTES, assert_neighbours_do_not_matter
from tests.support.data.contaminated import QUESTION, WORDS, find_in_parts, suite_item

UNITS = st.lists(st.sampled_from(["a", "b", "B", "c", "天", "地", "d'e"]), max_size=14)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(UNITS, min_size=1, max_size=5),
    questions=st.lists(UNITS, min_size=1, max_size=4),
    length=st.integers(2, 5),
)
def test_hits_are_those_of_comparing_every_ngram(
    documents, questions, length, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def grams(units: list[str]) -> set[tuple[str, ...]]:
        folded = [unit.lower() for unit in units]
        size = min(length, len(folded))
        return (
            {tuple(folded[i : i + size]) for i in range(len(folded) - size + 1)}
            if size >= 2
            else set()
        )

    def contains(units: list[str], gram: tuple[str, ...]) -> bool:
        folded = tuple(unit.lower() for unit in units)
        return any(folded[i : i + len(gram)] == gram for i in range(len(folded) - len(gram) + 1))

    expected = [
        sum(any(contains(units, gram) for gram in grams(question)) for question in questions)
        for units in documents
    ]
    texts, items = (
        [" ".join(units) for units in documents],
        [suite_item(" - ".join(q), name=str(i)) for i, q in enumerate(questions)],
    )
    config = {
        "ngram_units": length,
        "min_units": 2,
        "max_ngram_documents": None,
        "action": "report",
    }
    _, rows, hits = find_in_parts(tmp_path_factory.mktemp("grams"), [texts], items, **config)
    assert [row["num_hits"] for row in rows] == expected and len(hits) == sum(expected)


def test_equal_hashes_of_other_texts_are_no_hits() -> None:
    from tasks.corpus.documentset import text_buffers  # noqa: F401 - the same kernels as the stage
    from tasks.kernels.dedup.suite_ngrams import prove_ngrams
    from tasks.kernels.text.chars import char_classes, fold_table

    index = index_items([Item("s", "1", QUESTION, ())], 13, 8)
    document = np.frombuffer(QUESTION.replace("flows", "runs").encode(), np.uint8)
    spans, places = np.zeros(2 * len(index.hashes), np.int64), np.arange(len(index.hashes))
    firsts = np.searchsorted(np.sort(index.text_starts), index.text_starts)
    texts = (index.text, index.text_starts, index.text_stops, index.lengths)
    prove_ngrams(
        document, 0, len(document), firsts, places, *texts, char_classes(), fold_table(), spans
    )
    # `flows` is the tenth word: every n-gram that does not hold it would be proved, and all hold
    # it.
    assert (spans == -1).all()


def test_the_result_is_the_same_for_other_parts_and_workers(tmp_path: Path) -> None:
    rng = random.Random(0)
    items = [
        suite_item(
            " ".join(rng.choices(WORDS, k=rng.randint(9, 40))),
            " ".join(rng.choices(WORDS, k=5)),
            str(i),
        )
        for i in range(30)
    ]
    texts = [" ".join(rng.choices(WORDS, k=60)) for _ in range(40)]
    texts = [
        f"{text} {items[i % 30]['question']} {items[i % 30]['answer']}" if i % 3 == 0 else text
        for i, text in enumerate(texts)
    ]
    runs = [
        find_in_parts(tmp_path, [texts], items),
        find_in_parts(tmp_path, [texts[:1], texts[1:30], texts[30:]], items),
    ]
    runs.append(
        find_in_parts(
            tmp_path,
            [texts[:1], texts[1:30], texts[30:]],
            items,
            PartRunner(None, thread_executor(3)),
        )
    )
    assert runs[0][1:] == runs[1][1:] == runs[2][1:] and len(runs[0][2]) == 14
    assert runs[0][0].metrics == runs[1][0].metrics == runs[2][0].metrics


@settings(max_examples=60, deadline=None)
@given(BYTES, BYTES)
def test_ngrams_of_any_bytes_are_found_whatever_stands_beside_them(
    data: bytes, beside: bytes
) -> None:
    tables = char_classes(), fold_table()
    hashes, length, starts, stops = text_ngrams(np.frombuffer(data, np.uint8), 2, 2, *tables)
    assert all(0 <= start < stop <= len(data) for start, stop in zip(starts, stops, strict=True))
    known = np.unique(hashes)
    buckets = np.searchsorted(known >> np.uint64(60), np.arange(17))

    def find_in_parts(buf: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
        lengths = np.array([length], np.int64)
        found = find_ngrams(buf, begins, lengths, known, buckets, np.uint64(60), *tables).reshape(
            -1, 3
        )
        return (found[found[:, 0] == 1],)

    if len(known):
        assert_neighbours_do_not_matter(data, beside, find_in_parts)

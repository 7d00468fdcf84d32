"""Reads evaluation suites: their items as n-grams, sorted by hash, with the texts that prove a
match.

A suite is a file of records (`tasks.readers`) with a question column and, perhaps, an answer
column. An item's n-grams are those of its question, and those of question and answer together that
reach into the answer. A text of fewer than `ngram_units` units is one n-gram, the whole of it; of
fewer than `min_units`, none: "2 + 2 =" is in every book. Equal n-grams of several items are one,
with a list of the items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from llm_core.config import NOT_IN_KEY, ConfigError
from tasks.readers import Record
from tasks.readers.textfiles import check_text_files, records_of_file

MAX_ID_CHARS = 100


@dataclass(frozen=True)
class SuiteConfig:
    """One evaluation suite: its file, and which columns mean what."""

    path: Path = field(metadata=NOT_IN_KEY)
    """A file of items, .jsonl or .parquet. Its content is part of the key."""
    question: str = "question"
    """Column of what is asked, with all the context that goes into a prompt."""
    answer: str | None = None
    """Column of the answer: a text, a list of texts, or the number of a choice. Null: questions
    only."""
    choices: str | None = None
    """Column of the list of choices, which a number in `answer` counts from 0. Null: none."""
    id: str | None = "id"
    """Column of the item's name in hits. Where it is null or missing: the item's place in the
    file."""

    def __post_init__(self) -> None:
        if self.choices and not self.answer:
            raise ConfigError(
                f"choices ({self.choices}) needs answer; set it to the column with the number of"
                " the right choice"
            )


@dataclass(frozen=True)
class Item:
    """One evaluation item: the texts that go into a prompt, and those that a model should give."""

    suite: str
    name: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class SuiteIndex:
    """N-grams of all items, sorted by hash.

    `hashes`, `lengths`, `text_starts` and `text_stops` have one entry per n-gram.
    """

    text: np.ndarray
    hashes: np.ndarray
    lengths: np.ndarray
    """Units of an n-gram."""
    text_starts: np.ndarray
    text_stops: np.ndarray
    """Bytes of `text`."""
    starts: np.ndarray
    """Where the hashes with given leading bits begin."""
    item_begins: np.ndarray
    items: np.ndarray
    """The items of n-gram g are items[item_begins[g] : item_begins[g + 1]]."""
    reaches_answer: np.ndarray
    """For each of `items`, whether the n-gram is only in the item's answered form."""

    @property
    def shift(self) -> np.uint64:
        """64 minus the number of leading bits that `starts` counts by."""
        return np.uint64(64 - (len(self.starts) - 1).bit_length() + 1)

    def save(self, folder: Path) -> None:
        for array in fields(self):
            np.save(folder / f"{array.name}.npy", getattr(self, array.name))

    @classmethod
    def load(cls, folder: Path) -> SuiteIndex:
        return cls(*(np.load(folder / f"{a.name}.npy", mmap_mode="r") for a in fields(cls)))


def read_items(name: str, config: SuiteConfig) -> Iterator[Item]:
    """The items of a suite, in file order. Raises ConfigError where a record has no text to ask."""
    where = f"contamination.suites.{name}"
    check_text_files(f"{where}.path", (config.path,))
    number = 0
    for number, record in enumerate(records_of_file(config.path, config.question), start=1):
        if not isinstance(record, Record):
            raise ConfigError(
                f"{where}.path ({config.path}) has an unreadable record {number}: {record.error};"
                " fix the file"
            )
        question = record.values.get(config.question)
        if not isinstance(question, str):
            known = ", ".join(sorted(map(str, record.values)))
            raise ConfigError(
                f"{where}.question ({config.question}) is not text in record {number} of"
                f" {config.path}; its columns are {known}"
            )
        label = record.values.get(config.id) if config.id else None
        shown = str(number if label is None else label)[:MAX_ID_CHARS]
        yield Item(name, shown, question, _answers(record.values, config))
    if not number:
        raise ConfigError(
            f"{where}.path ({config.path}) has no item; give a file with one record per item"
        )


def index_items(items: list[Item], ngram_units: int, min_units: int) -> SuiteIndex:
    """The n-grams of these items."""
    from tasks.kernels.dedup.suite_ngrams import text_ngrams
    from tasks.kernels.text.chars import char_classes, fold_table

    tables = (char_classes(), fold_table())
    texts: list[bytes] = []
    columns: list[tuple[np.ndarray, ...]] = []
    position = 0
    for number, item in enumerate(items):
        question = item.question.encode("utf-8", "replace")
        for form, answer in enumerate((None, *item.answers)):
            whole = question
            if answer is not None:
                whole += b"\n" + answer.encode("utf-8", "replace")
            data = np.frombuffer(whole, np.uint8)
            hashes, length, starts, stops = text_ngrams(data, ngram_units, min_units, *tables)
            # Of an answered form only what reaches into the answer is new.
            new = stops > len(question) if form else np.ones(len(hashes), bool)
            if not new.any():
                continue
            texts.append(whole)
            num, places = int(new.sum()), (starts[new] + position, stops[new] + position)
            owner = (np.full(num, number), np.full(num, form > 0))
            columns.append((hashes[new], np.full(num, length), *places, *owner))
            position += len(whole)
    empty = (np.zeros(0, np.uint64), *(np.zeros(0, np.int64) for _ in range(4)), np.zeros(0, bool))
    hashes, lengths, starts, stops, owners, answered = (
        np.concatenate(c) for c in zip(empty, *columns, strict=True)
    )
    unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    # One entry per n-gram and item; a question's n-gram is one of the question, whatever its
    # answers repeat.
    order = np.lexsort((answered, owners, inverse))
    inverse, owners, answered = inverse[order], owners[order], answered[order]
    fresh = np.ones(len(inverse), bool)
    fresh[1:] = (inverse[1:] != inverse[:-1]) | (owners[1:] != owners[:-1])
    # At least four ranges of leading bits per n-gram, so that a look-up compares hardly any hash.
    bits = max(4, int(4 * len(unique)).bit_length())
    edges = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    return SuiteIndex(
        text=np.frombuffer(b"".join(texts), np.uint8),
        hashes=unique,
        lengths=lengths[first],
        text_starts=starts[first],
        text_stops=stops[first],
        starts=np.append(np.searchsorted(unique, edges), len(unique)),
        item_begins=np.searchsorted(inverse[fresh], np.arange(len(unique) + 1)),
        items=owners[fresh],
        reaches_answer=answered[fresh],
    )


def _answers(values: Mapping[str, Any], config: SuiteConfig) -> tuple[str, ...]:
    if config.answer is None:
        return ()
    answer = values.get(config.answer)
    choices = values.get(config.choices) if config.choices else None
    # Not isinstance: True is an int, and not the number of a choice.
    if isinstance(choices, list) and type(answer) is int and 0 <= answer < len(choices):
        answer = choices[answer]
    found = answer if isinstance(answer, list) else [answer]
    texts = (str(one) for one in found if isinstance(one, (str, int, float)))
    return tuple(dict.fromkeys(text for text in texts if text.strip()))

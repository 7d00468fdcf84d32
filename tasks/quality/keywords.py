"""Counts the terms of lists in documents, and locates them.

Lists are named, and come from files (one term per line, UTF-8; lines that begin with `#` are
comments) or from the configuration. Text and terms are folded, a run of white space is one space,
and a term stands between word boundaries, except in scripts written without spaces;
`tasks.kernels.quality.keywords` says what exactly that is. Each list is a feature `keywords_NAME`
(occurrences, 0 in languages it is not for) and a rule KEYWORDS_NAME, which drops, records, or
records and masks.

In: texts, languages. Out: columns `keywords_NAME` int64; `masks` list<struct<start, end, type>>
where a list masks: UTF-8 byte ranges in the original text, type NAME in upper case, ordered, those
of one list disjoint. Cost: one walk over the text for all lists, none where no list is configured;
a second to build the matcher of some tens of thousands of terms, once in a process. Left out:
inflected forms; which term it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from llm_core.config import NOT_IN_KEY, ConfigError
from tasks.corpus.documentset import text_buffers
from tasks.corpus.language_labels import check_label
from tasks.corpus.listfiles import read_entries
from tasks.corpus.named_labels import NAMES_LANGUAGES
from tasks.quality.presets import Rule

if TYPE_CHECKING:
    from tasks.kernels.quality.keywords import Matcher

MASK = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("type", pa.string())])


@dataclass(frozen=True)
class KeywordList:
    """Terms, and what happens to a document that holds them."""

    terms: tuple[str, ...] = ()
    """Terms of the list."""

    files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Files with one term per line. Their contents are part of the key."""

    languages: tuple[str, ...] = field(default=(), metadata=NAMES_LANGUAGES)
    """Labels of the languages it applies to; empty: all."""

    action: Literal["drop", "tag", "mask"] = "drop"
    """What happens to a document with too many terms. drop it; tag it in the verdict; or mask: tag
    it and replace each term by the name of the list in angle brackets."""

    max_hits: int = 0
    """Occurrences that are allowed. Masks replace all of them."""

    def __post_init__(self) -> None:
        if not self.terms and not self.files:
            raise ConfigError(
                "a list of keywords without terms and files finds nothing; give terms=[WORD] or"
                " files=[PATH]"
            )
        for term in self.terms:
            if not term.strip():
                raise ConfigError(f"terms holds an empty one ({term!r}); remove it")
        if self.max_hits < 0:
            raise ConfigError(
                f"max_hits ({self.max_hits}) must be at least 0; 0 allows no occurrence"
            )
        for label in self.languages:
            check_label(label, "languages")


Lists = Mapping[str, KeywordList]
"""{name: list}, in the order of bits."""


def check_keywords(lists: Lists) -> None:
    """Raise ConfigError on names that cannot be those of features and rules."""
    for name in lists:
        if not re.fullmatch("[a-z][a-z0-9_]*", name) or name.endswith(("_over_max", "_under_min")):
            raise ConfigError(
                f"keywords names a list {name!r}; use lower-case letters, digits and _, a letter"
                " first, and no _over_max or _under_min at the end"
            )


def keyword_feature(name: str) -> str:
    return f"keywords_{name}"


def keyword_rules(lists: Lists) -> list[tuple[Rule, bool]]:
    """(rule, whether it drops) of each list."""
    return [
        (
            Rule(feature.upper(), "keywords", feature, "max", one.max_hits, "all", one.languages),
            one.action == "drop",
        )
        for feature, one in ((keyword_feature(name), one) for name, one in lists.items())
    ]


def keyword_files(lists: Lists) -> dict[str, Path]:
    """{place in the configuration: file}."""
    return {
        f"keywords/{name}/{i}": path
        for name, one in lists.items()
        for i, path in enumerate(one.files)
    }


def find_keywords(
    lists: Lists, files_digest: str, texts: pa.ChunkedArray, languages: np.ndarray
) -> tuple[dict[str, np.ndarray], pa.ChunkedArray | None]:
    """({feature: occurrences by document, int64}, masks or None where no list masks).

    files_digest: of the contents of all files, so that a list is read again when it has changed.
    Raises ConfigError on a list without a term.
    """
    if not lists:
        return {}, None
    from tasks.kernels.quality.keywords import find_terms

    matcher = _matcher(
        tuple((name, one.terms, one.files) for name, one in lists.items()), files_digest
    )
    asked = np.zeros(len(texts), np.uint64)
    located = np.uint64(0)
    for bit, one in enumerate(lists.values()):
        applies = np.isin(languages.astype(str), one.languages) | (not one.languages)
        asked |= applies.astype(np.uint64) << np.uint64(bit)
        located |= np.uint64(one.action == "mask") << np.uint64(bit)
    values, begins = text_buffers(texts)
    # The kernel also counts the spans it has no room for, so a second call is the last.
    room = 1024 + len(values) // 16
    while True:
        counts, spans = np.zeros((len(texts), len(lists)), np.int64), np.empty((room, 4), np.int64)
        found = find_terms(values, begins, matcher, asked, located, counts, spans)
        if found <= room:
            break
        room = found
    masks = _masks(spans[:found], len(texts), [name.upper() for name in lists]) if located else None
    return {keyword_feature(name): counts[:, i].copy() for i, name in enumerate(lists)}, masks


def count_keywords(lists: Lists, features: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """{list: documents with a term of it, occurrences}."""
    hits = {name: features[keyword_feature(name)] for name in lists}
    return {
        name: {"documents": int((values > 0).sum()), "hits": int(values.sum())}
        for name, values in hits.items()
    }


@lru_cache(maxsize=2)
def _matcher(
    lists: Sequence[tuple[str, tuple[str, ...], tuple[Path, ...]]], files_digest: str
) -> Matcher:
    from tasks.kernels.quality.keywords import build_matcher, fold_text

    terms: dict[str, int] = {}
    for bit, (name, inline, files) in enumerate(lists):
        listed = list(inline)
        for path in files:
            listed += read_entries(path, f"quality.keywords.{name}.files")
        # A term that folds to nothing would be found everywhere.
        folded = {fold_text(term) for term in listed} - {""}
        if not folded:
            raise ConfigError(
                f"quality.keywords.{name} has no term in its files; add one, or remove the list"
            )
        for term in folded:
            terms[term] = terms.get(term, 0) | 1 << bit
    return build_matcher(terms)


def _masks(spans: np.ndarray, num_documents: int, types: Sequence[str]) -> pa.ChunkedArray:
    """One row per document, of spans (document, list, start, stop) in order of document, start and
    stop; those of a list that overlap become one."""
    group = spans[:, 0] * len(types) + spans[:, 1]
    by_group = np.argsort(group, kind="stable")
    spans, group = spans[by_group], group[by_group]
    size = int(spans[:, 3].max(initial=0)) + 1
    # Where each group ends so far: groups ascend, so a running maximum never looks back into
    # another one.
    covered = np.maximum.accumulate(group * size + spans[:, 3])
    fresh = np.ones(len(spans), bool)
    fresh[1:] = group[1:] * size + spans[1:, 2] >= covered[:-1]
    rows = spans[fresh]
    if len(rows):
        rows[:, 3] = np.maximum.reduceat(spans[:, 3], np.flatnonzero(fresh))
    # Keys that ascend with the documents: nothing is left to sort where there is one list.
    starts, stops = rows[:, 0] * size + rows[:, 2], rows[:, 0] * size + rows[:, 3]
    rows = rows[np.lexsort((rows[:, 1], stops, starts))]
    names = pa.array(types, pa.string()).take(pa.array(rows[:, 1]))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[:, 0], minlength=num_documents))])
    flat = pa.StructArray.from_arrays(
        [pa.array(rows[:, 2]), pa.array(rows[:, 3]), names], fields=list(MASK)
    )
    return pa.chunked_array([pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)])

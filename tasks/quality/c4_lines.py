"""Finds the lines that C4 would remove from a page: its rules on lines, as ranges of bytes and not
as measures of the page.

Raffel et al. 2020, section 2.2, in the readings of the presets of the same names
(`tasks.kernels.quality.c4` has them, and counts what these rules keep): a line goes with a word of
over 1000 characters, without . ? ! or " at its end or with `...` there, with fewer than 3 words
(c4_code: 5), with `javascript`, or with one of six phrases of policies; c4_fineweb asks nothing of
ends. Citation marks are looked past, and stay. A line goes with its end and the blank lines after
it; C4 puts out no blank line at all.

In: text (UTF-8). Out: `cuts` list<struct<start, end, reason>>, a row for each line that goes, of
the first reason that holds, in the order of C4's published code. No document is dropped here:
documents drops as EMPTIED those that nothing is left of. Texts in scripts without spaces are left
alone. Cost: Python over lines, some 12 MB/s a core, and only where it is configured.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError
from tasks.corpus.named_labels import NAMES_LANGUAGES
from tasks.definitions.c4_kinds import (
    CITATION_MARKS,
    JAVASCRIPT,
    LONG_WORD,
    LONG_WORD_CHARS,
    MAX_CITATION_DIGITS,
    MIN_LINE_WORDS,
    NO_END_MARK,
    POLICY,
    POLICY_PHRASES,
    SCRIPT_PHRASE,
    TOO_FEW_WORDS,
)

LineRules = Literal["none", "c4_paper", "c4_code", "c4_fineweb"]
LINE_CUTS = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())])
)

_CITATION = re.compile(
    "|".join([rf"\[[0-9]{{0,{MAX_CITATION_DIGITS}}}\]", *map(re.escape, CITATION_MARKS)])
)
# Case is ignored in ASCII alone, as the measures do.
_SCRIPT = re.compile(SCRIPT_PHRASE, re.IGNORECASE | re.ASCII)
_POLICY = re.compile("|".join(POLICY_PHRASES), re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class LineCutsConfig:
    """Lines that are taken out of documents that stay, for what they are."""

    rules: LineRules = "none"
    """Whose rules decide which lines are removed."""

    languages: tuple[str, ...] = field(default=(), metadata=NAMES_LANGUAGES)
    """Labels of the languages whose documents lose lines, such as [en], C4's language; empty:
    all."""

    def __post_init__(self) -> None:
        if self.languages and self.rules == "none":
            raise ConfigError(
                f"line_cuts.languages ({', '.join(self.languages)}) does nothing without"
                " line_cuts.rules; try rules=c4_paper"
            )


def cut_lines(texts: pa.ChunkedArray, mine: np.ndarray, rules: LineRules) -> pa.Array:
    """The cuts of each text; of those that are not `mine` (bool) none."""
    begins, rows = [0], []
    for text, is_mine in zip(texts, mine.tolist(), strict=True):
        if is_mine:
            rows += list(line_cuts(text.as_py(), rules))
        begins.append(len(rows))
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [(), (), ()]
    fields = list(LINE_CUTS.value_type)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, fields, strict=True)]
    return pa.ListArray.from_arrays(
        pa.array(begins, pa.int32()), pa.StructArray.from_arrays(arrays, fields=fields)
    )


def line_cuts(text: str, rules: LineRules) -> Iterator[tuple[int, int, str]]:
    """(start, end, reason) of each line that goes, in UTF-8 bytes, in order."""
    open_cut: tuple[int, str] | None = None
    position = 0
    for line in text.split("\n"):
        begin = position
        position += (len(line) if line.isascii() else len(line.encode())) + 1
        stripped = line.strip()
        if not stripped:
            continue
        if open_cut:
            yield open_cut[0], begin, open_cut[1]
        reason = line_fault(stripped, rules)
        open_cut = (begin, reason) if reason else None
    if open_cut:
        yield open_cut[0], position - 1, open_cut[1]  # the last line has no end


def line_fault(line: str, rules: LineRules) -> str | None:
    """Why a line without blanks around it goes, or None where it stays."""
    words = line.split()
    if len(line) > LONG_WORD_CHARS and max(map(len, words)) > LONG_WORD_CHARS:
        return LONG_WORD
    clean = _CITATION.sub("", line) if "[" in line else line
    if rules != "c4_fineweb":
        if not clean.endswith((".", "?", "!", '"')) or clean.endswith("..."):
            return NO_END_MARK
        words = clean.split() if clean is not line else words
    if len(words) < MIN_LINE_WORDS[rules]:
        return TOO_FEW_WORDS
    if _SCRIPT.search(clean):
        return JAVASCRIPT
    return POLICY if _POLICY.search(clean) else None


def count_line_cuts(cuts: pa.Array, kept: np.ndarray) -> dict[str, dict[str, int]]:
    """{reason: cuts, bytes and documents} of the documents that are kept (bool), and `all` of them
    together."""
    table: dict[str, Counter[str]] = {}
    for document in cuts.filter(pa.array(kept)).to_pylist():
        for cut in document:
            for name in (cut["reason"], "all"):
                table.setdefault(name, Counter()).update(cuts=1, bytes=cut["end"] - cut["start"])
        for name in {cut["reason"] for cut in document} | ({"all"} if document else set()):
            table[name]["documents"] += 1
    return {name: dict(counts) for name, counts in table.items()}

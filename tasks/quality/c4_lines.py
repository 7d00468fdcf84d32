"""Cuts the lines that C4 would take out of a page: its rules on lines, as ranges of bytes.

Raffel et al. 2020, section 2.2, in the readings of the presets of the same names
(`tasks.kernels.quality.c4` has them, and counts what these rules keep): a line goes with a word of
over 1000 characters, without . ? ! or " at its end or with `...` there, with fewer than 3 words
(c4_code: 5), with `javascript`, or with one of six phrases of policies; c4_fineweb asks nothing of
ends. Citation marks are looked past, and stay. A line goes with its end and the blank lines after
it; C4 puts out no blank line at all.

In: text (UTF-8). Out: `cuts` list<struct<start, end, reason>>, a row for each line that goes, of
the first reason that holds, in the order of C4's published code. No document is dropped here:
documents drops as EMPTIED those that nothing is left of. Texts in scripts without spaces are left
alone. Cost: one walk over the text, and only where it is configured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError
from tasks.corpus.documentset import text_buffers
from tasks.corpus.named_labels import NAMES_LANGUAGES
from tasks.definitions.c4_kinds import READINGS, REASONS

LineRules = Literal["none", "c4_paper", "c4_code", "c4_fineweb"]
LINE_CUTS = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())])
)


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
                f"languages ({', '.join(self.languages)}) does nothing without rules; try"
                " rules=c4_paper"
            )


def cut_lines(texts: pa.ChunkedArray, mine: np.ndarray, rules: LineRules) -> pa.Array:
    """The cuts of each text; of those that are not `mine` (bool) none."""
    from tasks.kernels.quality.c4 import c4_tables, find_faulty_lines
    from tasks.kernels.text.bitmaps import char_flags

    values, begins = text_buffers(texts)
    # A text has one line more than newlines, and a line at most one cut.
    num_lines = int(np.count_nonzero(values == ord("\n"))) + len(texts)
    cuts, counts = np.empty((num_lines, 3), np.int64), np.zeros(len(texts), np.int64)
    stripped = np.empty(int(np.diff(begins).max(initial=0)), np.uint8)
    tables = char_flags(), c4_tables()
    num_cuts = find_faulty_lines(
        values, begins, mine, READINGS[rules], *tables, stripped, cuts, counts
    )
    starts, ends, places = cuts[:num_cuts].T.copy()
    columns = [pa.array(starts), pa.array(ends), pa.array(REASONS).take(pa.array(places))]
    rows = pa.StructArray.from_arrays(columns, fields=list(LINE_CUTS.value_type))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)


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

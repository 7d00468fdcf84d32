"""Measures of form, one row of numbers per document, over Arrow string buffers.

The measures of Gopher (Rae et al. 2021, appendix A.1.1), FineWeb (Penedo et al. 2024, appendix E)
and C4 (Raffel et al. 2020, section 2.2). Published codes differ from the papers and from each
other; what is measured here:

unit        as in tasks.kernels.text.chars: a word, or one letter of an unsegmented script; case
            counts. Characters are code points.
line        what stands between newlines, trimmed; blank lines are none and in no denominator
            (DataTrove's Gopher counts them).
paragraph   a maximal run of lines with no blank line between.
duplicate   a line or paragraph seen before: the second and later copies, what removing them would
            take (DataTrove's reading; dolma counts the first too). Character fractions are of the
            characters of all lines, surrounding white space left out.
n-gram      of units, across lines. One that occurs once is not a repetition (RedPajama, DCLM;
            DataTrove counts it). All copies count, the first too, and a character under two n-grams
            counts once, as the Gopher paper asks. Most frequent means the first seen among equals.
            Fractions are of the characters in units (dolma, DCLM, RedPajama; DataTrove divides by
            the length of the text).
stop word   of the list of the document's language, Gopher's eight where there is none; in lower
            case, as most published codes have them. Counted once each (Gopher), and with
            repetitions (DCLM's RefinedWeb).
ellipsis    `…` or `...`, counted left to right without overlap.
body        lines other than running heads of pages (tasks.kernels.quality.lines).
bare line   of at most 30 characters, without a mark that ends sentences.
signs       digits (ASCII), punctuation (P*) and symbols (S*), per character that is not white
            space; a run of one mark or symbol is one character, so that underlines and frames of
            tables weigh little. Damaged characters per character (tasks.kernels.quality.marks).
sentence    ends at white space behind `.?!` and what closes after them, or at a mark of another
            script, and at the end of the text.
per word    counts are divided by units; where there are none the ratio is 0.
Bullets, ends of lines and C4's measures: tasks.kernels.quality.lines and tasks.kernels.quality.c4.

Cost: one pass over the bytes, 64 at a time, and some table look-ups per unit; linear, also in
hostile text. Memory: at worst 60 to 80 bytes per byte of the longest document. Empty and blank text
gives zeros.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from tasks.definitions.features import FEATURES
from tasks.definitions.scripts import SCRIPTS
from tasks.kernels import inner
from tasks.kernels.quality import c4
from tasks.kernels.quality.lines import duplicate_paragraphs, line_marks, measure_lines
from tasks.kernels.quality.marks import count_marks, mark_kinds
from tasks.kernels.quality.ngrams import MAX_N, filter_size, repeated_ngrams
from tasks.kernels.quality.stopwords import count_stop_words, empty_tables, fill_tables, pack_lists
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.bitmaps import (
    NUM_MAPS,
    PADDING,
    SENTENCE_ENDS,
    char_flags,
    count_ones,
    map_document,
)
from tasks.kernels.text.interning import make_table
from tasks.kernels.text.scripts import count_scripts
from tasks.kernels.text.units import number_units

at: Any = namedtuple("at", FEATURES)(*range(len(FEATURES)))
"""The column of each feature. Kernels know it as numbers."""

SCRIPT_CHARS = 1000

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's."""


def measure_texts(
    buf: np.ndarray,
    offsets: np.ndarray,
    stop_lists: Sequence[Sequence[str]] = (),
    list_of_document: np.ndarray | None = None,
) -> np.ndarray:
    """Feature rows, float64[documents, len(FEATURES)], of texts in Arrow buffers
    (tasks.corpus.documentset.text_buffers).

    stop_lists: lists of stop words; list_of_document: the number of the list asked of each
    document; 0 where not given.
    """
    rows = np.zeros((len(offsets) - 1, len(FEATURES)), np.float64)
    if list_of_document is None:
        list_of_document = np.zeros(len(rows), np.int64)
    stop_lists = stop_lists or [STOP_WORDS]
    packed = pack_lists(stop_lists)
    tables = ((char_flags(), line_marks(), mark_kinds()), c4.c4_tables(), empty_tables(stop_lists))
    # Bytes behind a document are read: the last ones are measured in a copy with room behind it.
    padded = int(np.searchsorted(offsets[1:], len(buf) - PADDING, "right"))
    tail = np.zeros(int(offsets[-1] - offsets[padded]) + PADDING, np.uint8)
    tail[:-PADDING] = buf[offsets[padded] : offsets[-1]]
    buf, tail = buf.view(), tail.view()
    buf.setflags(write=False)
    tail.setflags(write=False)
    longest = int(np.diff(offsets).max(initial=0))
    room = _make_room(longest)
    parts = (
        (buf, offsets[: padded + 1], slice(padded)),
        (tail, offsets[padded:] - offsets[padded], slice(padded, None)),
    )
    for texts, begins, some in parts:
        _measure_documents(texts, begins, list_of_document[some], packed, tables, room, rows[some])
    rows[:, at.other_script_frac] = _other_scripts(buf, offsets)
    return rows


def _other_scripts(buf: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Of the letters among the first SCRIPT_CHARS of each text, the share that is not of the most
    frequent script. Han, Kana and Hangul are one: Japanese and Korean mix them."""
    counts = count_scripts(buf, offsets, SCRIPT_CHARS)[0].astype(np.float64)
    for script in ("KANA", "HANGUL"):
        counts[:, SCRIPTS.index("HAN")] += counts[:, SCRIPTS.index(script)]
        counts[:, SCRIPTS.index(script)] = 0
    letters = counts[:, 1:].sum(1)
    return np.divide(
        letters - counts[:, 1:].max(1), letters, out=np.zeros(len(counts)), where=letters > 0
    )


def _make_room(longest: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Arrays for a document of so many bytes. Made here, as NumPy's zeros cost nothing until they
    are touched, in huge pages."""
    # Two units or lines are two bytes apart, or one of them is a letter of three bytes.
    room, num_words = longest // 2 + 3, longest // 64 + 3

    def numbers(*dtypes: type) -> tuple[np.ndarray, ...]:
        return tuple(np.empty(room, dtype) for dtype in dtypes)

    bits = (np.empty(NUM_MAPS * num_words, np.uint64), np.empty(4 * num_words, np.int64))
    spans = numbers(np.int64, np.int64, np.uint64, np.uint64)
    places, units = numbers(np.int64, np.int64), numbers(np.int32, np.int64, np.int32, np.int32)
    others = make_table(room), np.empty(filter_size(room), np.uint8), np.empty(longest, np.uint8)
    totals = np.zeros(c4.MEASURES, np.int64), np.zeros(MAX_N + 1, np.int64)
    return bits, spans, places, units, numbers(np.int32, np.int32, np.int32), others, totals


@njit(cache=True, nogil=True)
def _measure_documents(texts, offsets, stop_lists, packed_arrays, tables, room, rows):  # type: ignore[no-untyped-def]
    buf, packed_lists, (char_tables, c4_tables, stops) = pointers((texts, packed_arrays, tables))
    bits, spans, places, units_room, scratch, others, (c4_totals, covered) = pointers(room)
    maps, (table, seen, stripped) = bits[0], others
    flags, line_marks_of, kinds = char_tables
    line_tables = flags, line_marks_of
    units, unit_chars = (units_room[0], units_room[1], units_room[2]), units_room[3]
    # Lines and units share their room: lines are done with when units begin.
    lines, line_spans = (scratch[0], units[2], scratch[1]), (spans[0], spans[1], spans[2], units[1])
    fill_tables(packed_lists, len(packed_arrays[2]), stops)
    for d in range(len(rows)):
        begin, end = offsets[d], offsets[d + 1]
        num_units, num_tails, num_newlines, hashes, ellipses, braces = map_document(
            buf, begin, end, flags, maps, places[0], places[1]
        )
        num_chars = end - begin - num_tails
        digits, punctuation, symbols, solid, damaged, wide_ends = count_marks(
            buf, begin, end, num_chars, kinds
        )
        num_lines, num_paragraphs, counts, dup_line_chars, line_chars, body = measure_lines(
            buf, begin, end, bits, line_tables, c4_tables, lines, line_spans, table, num_newlines,
            stripped, (scratch[2], unit_chars), c4_totals,
        )  # fmt: skip
        bullet, ellipsis, terminal, short, bare, dup = counts
        sentences = wide_ends + 1
        for word in range((end - begin + 63) >> 6):
            sentences += count_ones(maps[NUM_MAPS * word + SENTENCE_ENDS])
        dup_paragraphs, dup_paragraph_chars = 0, 0
        if dup:  # no paragraph came before where no line did
            dup_paragraphs, dup_paragraph_chars = duplicate_paragraphs(
                lines, units[1], num_paragraphs, spans[2], table
            )
        num_ids, unsegmented, alphabetic, word_chars, longest_word = number_units(
            buf, begin, maps, flags, num_units, places, spans, units, unit_chars, table
        )
        repeated_ngrams(units, num_units, num_ids, scratch, spans[3], seen, table, covered)
        stop_words, stop_occurrences = count_stop_words(
            buf, spans[0], spans[1], spans[2], units[2], num_ids, packed_lists, stops, stop_lists[d]
        )
        row = rows[d]
        row[at.num_chars], row[at.num_words] = num_chars, num_units
        row[at.num_lines], row[at.num_paragraphs] = num_lines, num_paragraphs
        row[at.num_stop_words], row[at.num_stop_word_occurrences] = stop_words, stop_occurrences
        row[at.longest_word_chars] = longest_word
        row[at.c4_num_curly_braces] = braces
        row[at.c4_num_lorem_ipsum_lines] = c4_totals[c4.LOREM_IPSUM_LINES]
        row[at.c4_num_sentences] = c4_totals[c4.PAPER + c4.SENTENCES]
        row[at.c4_code_num_sentences] = c4_totals[c4.CODE + c4.SENTENCES]
        row[at.c4_fineweb_num_sentences] = c4_totals[c4.FINEWEB + c4.SENTENCES]
        row[at.c4_code_num_forbidden_lines] = c4_totals[c4.CODE + c4.FORBIDDEN_LINES]
        row[at.c4_fineweb_num_forbidden_lines] = c4_totals[c4.FINEWEB + c4.FORBIDDEN_LINES]
        row[at.mean_word_chars] = _ratio(word_chars, num_units - unsegmented)
        row[at.unsegmented_frac] = _ratio(unsegmented, num_units)
        row[at.alphabetic_word_frac] = _ratio(alphabetic, num_units)
        row[at.hash_per_word] = _ratio(hashes, num_units)
        row[at.ellipsis_per_word] = _ratio(ellipses, num_units)
        row[at.newline_per_word] = _ratio(num_newlines, num_units)
        row[at.bullet_line_frac] = _ratio(bullet, num_lines)
        row[at.ellipsis_line_frac] = _ratio(ellipsis, num_lines)
        row[at.terminal_line_frac] = _ratio(terminal, num_lines)
        row[at.short_line_frac] = _ratio(short, num_lines)
        row[at.dup_line_frac] = _ratio(dup, num_lines)
        row[at.dup_line_char_frac] = _ratio(dup_line_chars, line_chars)
        row[at.dup_paragraph_frac] = _ratio(dup_paragraphs, num_paragraphs)
        row[at.dup_paragraph_char_frac] = _ratio(dup_paragraph_chars, line_chars)
        row[at.c4_kept_line_frac] = _ratio(c4_totals[c4.PAPER + c4.KEPT_LINES], num_lines)
        row[at.c4_code_kept_line_frac] = _ratio(c4_totals[c4.CODE + c4.KEPT_LINES], num_lines)
        row[at.c4_fineweb_kept_line_frac] = _ratio(c4_totals[c4.FINEWEB + c4.KEPT_LINES], num_lines)
        row[at.body_dup_line_frac] = _ratio(body[0], body[1])
        row[at.body_dup_line_char_frac] = _ratio(body[2], body[3])
        row[at.bare_line_frac] = _ratio(bare, num_lines)
        row[at.punctuation_frac] = _ratio(punctuation, solid)
        row[at.symbol_frac] = _ratio(symbols, solid)
        row[at.digit_frac] = _ratio(digits, solid)
        row[at.sign_frac] = _ratio(digits + punctuation + symbols, solid)
        row[at.mojibake_frac] = _ratio(damaged, num_chars)
        row[at.mean_sentence_words] = num_units / sentences
        for n in range(2, MAX_N + 1):  # top_2gram_char_frac to dup_10gram_char_frac
            row[at.top_2gram_char_frac + n - 2] = _ratio(covered[n], units[1][num_units])


@inner
def _ratio(part, whole):  # type: ignore[no-untyped-def]
    return part / whole if whole > 0 else 0.0

"""Measures of form, one row of numbers per document, over Arrow string buffers.

The measures of Gopher (Rae et al. 2021, appendix A.1.1), FineWeb (Penedo et al. 2024, appendix E) and C4 (Raffel et al. 2020,
section 2.2). Published codes differ from the papers and from each other; what is measured here:

unit        as in tasks.kernels.chars: a word, or one letter of an unsegmented script; case counts. Characters are code points.
line        what stands between newlines, trimmed; blank lines are none and in no denominator (DataTrove's Gopher counts them).
paragraph   a maximal run of lines with no blank line between.
duplicate   a line or paragraph seen before: the second and later copies, what removing them would take (DataTrove's reading;
            dolma counts the first too). Character fractions are of the characters of all lines, surrounding white space left out.
n-gram      of units, across lines. One that occurs once is no repetition (RedPajama, DCLM; DataTrove counts it). All copies
            count, the first too, and a character under two n-grams counts once, as the Gopher paper asks. Most frequent means
            the first seen among equals. Fractions are of the characters in units (dolma, DCLM, RedPajama; DataTrove divides by
            the length of the text).
stop word   distinct ones of Gopher's eight, in lower case as most published codes have them.
ellipsis    `…` or `...`, counted left to right without overlap.
per word    counts are divided by units; where there are none the ratio is 0.
Bullets, ends of lines and C4's measures: tasks.kernels.lines and tasks.kernels.c4.

Cost: a few passes over the bytes and some table look-ups per unit; linear, also in hostile text. Memory: about 60 bytes per byte
of the longest document at worst. Empty and blank text gives zeros.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import c4
from tasks.kernels.chars import APOSTROPHE, LETTER, MARK, OTHER, UNSEGMENTED, char_classes, decode
from tasks.kernels.interning import intern_span, make_table, table_mask
from tasks.kernels.lines import count_chars, line_marks, scan_lines, scan_paragraphs
from tasks.kernels.ngrams import MAX_N, repeated_ngrams
from tasks.quality_features import FEATURES

_DOT, _HASH, _BRACE = b".#{"
# Places in a row, of its own accord: a name imported from outside this folder could change without these being compiled again.
_FIRST_TOP, _FIRST_DUP = 24, 27


def measure_texts(buf: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Feature rows, float64[documents, len(FEATURES)], of texts in Arrow buffers (tasks.documentset.text_buffers)."""
    rows = np.zeros((len(offsets) - 1, len(FEATURES)), np.float64)
    _measure_documents(buf, offsets, char_classes(), line_marks(), c4.phrase_tables(), rows)
    return rows


@njit(cache=True, nogil=True)
def _measure_documents(buf, offsets, classes, marks, phrases, rows):  # type: ignore[no-untyped-def]
    longest = 0
    for d in range(len(rows)):
        longest = max(longest, offsets[d + 1] - offsets[d])
    # Two units or lines are two bytes apart, or one of them is a letter of three bytes.
    room = longest // 2 + 3
    table = make_table(room)
    lines = (
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
    )
    spans = (np.empty(room, np.int64), np.empty(room, np.int64))
    scratch = (np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32))
    unit_ids, char_sums = np.empty(room, np.int32), np.empty(room, np.int64)
    top_chars, dup_chars = np.zeros(MAX_N + 1, np.int64), np.zeros(MAX_N + 1, np.int64)
    generation = np.int32(0)
    for d in range(len(rows)):
        begin, end = offsets[d], offsets[d + 1]
        generation += 1
        found = scan_lines(buf, begin, end, classes, marks, lines, spans, table, generation)
        num_lines, num_newlines, bullet, ellipsis, terminal, short, dup, dup_line_chars, line_chars = found
        generation += 1
        num_paragraphs, dup_paragraphs, dup_paragraph_chars = scan_paragraphs(lines, num_lines, scratch[0], table, generation)
        generation += 1
        units = _scan_units(buf, classes, phrases, lines, num_lines, spans, char_sums)
        num_units, unsegmented, alphabetic, word_chars, longest_word, kept_lines, sentences, lorem_ipsum = units
        stop_words = _intern_units(buf, spans, num_units, unit_ids, table, generation)
        generation = repeated_ngrams(unit_ids, char_sums, num_units, scratch, table, generation, top_chars, dup_chars)
        hashes, ellipses, braces = _count_symbols(buf, begin, end)
        # In the order of FEATURES.
        row = rows[d]
        row[0] = count_chars(buf, begin, end)
        row[1], row[2], row[3], row[4], row[5] = num_units, num_lines, num_paragraphs, stop_words, longest_word
        row[6], row[7], row[8] = sentences, braces, lorem_ipsum
        row[9] = _ratio(word_chars, num_units - unsegmented)
        row[10], row[11] = _ratio(unsegmented, num_units), _ratio(alphabetic, num_units)
        row[12], row[13], row[14] = _ratio(hashes, num_units), _ratio(ellipses, num_units), _ratio(num_newlines, num_units)
        row[15], row[16] = _ratio(bullet, num_lines), _ratio(ellipsis, num_lines)
        row[17], row[18] = _ratio(terminal, num_lines), _ratio(short, num_lines)
        row[19], row[20] = _ratio(dup, num_lines), _ratio(dup_line_chars, line_chars)
        row[21], row[22] = _ratio(dup_paragraphs, num_paragraphs), _ratio(dup_paragraph_chars, line_chars)
        row[23] = _ratio(kept_lines, num_lines)
        for n in range(2, 5):
            row[_FIRST_TOP + n - 2] = _ratio(top_chars[n], char_sums[num_units])
        for n in range(5, MAX_N + 1):
            row[_FIRST_DUP + n - 5] = _ratio(dup_chars[n], char_sums[num_units])


@njit(cache=True, nogil=True)
def _scan_units(buf, classes, phrases, lines, num_lines, spans, char_sums):  # type: ignore[no-untyped-def]
    """Find the units of all lines and measure them, and the lines by their units.

    Fills `spans` (starts and stops of units) and char_sums (characters in the units before each; one entry more than units).
    Returns (units, unsegmented and alphabetic ones, characters of segmented units, characters of the longest unit, lines C4
    keeps, sentences in them, lines with "lorem ipsum").
    """
    num_units, num_unsegmented, num_alphabetic = 0, 0, 0
    word_chars, longest, kept_lines, sentences, lorem_ipsum = 0, 0, 0, 0, 0
    starts, stops = spans
    char_sums[0] = 0
    for line in range(num_lines):
        line_start, line_stop = lines[0][line], lines[1][line]
        first_unit, line_longest = num_units, 0
        pos = line_start
        while True:
            start, pos, chars, alphabetic, unsegmented = _scan_unit(buf, pos, line_stop, classes)
            if start == pos:
                break
            starts[num_units], stops[num_units] = start, pos
            num_units += 1
            char_sums[num_units] = char_sums[num_units - 1] + chars
            num_alphabetic += alphabetic
            if unsegmented:
                num_unsegmented += 1
            else:
                word_chars += chars
            line_longest = max(line_longest, chars)
        longest = max(longest, line_longest)
        phrases_found = c4.find_phrases(buf, line_start, line_stop, phrases)
        lorem_ipsum += (phrases_found & c4.LOREM_IPSUM_BIT) != 0
        if c4.survives(buf, line_start, line_stop, num_units - first_unit, line_longest, phrases_found):
            kept_lines += 1
            sentences += c4.count_sentences(buf, line_start, line_stop, classes)
    return num_units, num_unsegmented, num_alphabetic, word_chars, longest, kept_lines, sentences, lorem_ipsum


@njit(cache=True, nogil=True)
def _intern_units(buf, spans, num_units, unit_ids, table, generation):  # type: ignore[no-untyped-def]
    """Fill unit_ids from the spans of units, which are overwritten; returns the number of distinct stop words."""
    starts, stops = spans
    mask = table_mask(num_units)
    num_ids, stop_words = 0, 0
    for i in range(num_units):
        # Distinct spans are kept in the same arrays: there are never more of them than units read.
        start, stop = starts[i], stops[i]
        found = intern_span(buf, start, stop, spans, num_ids, table, generation, mask)
        if found == num_ids:
            num_ids += 1
            stop_words += _is_stop_word(buf, start, stop)
        unit_ids[i] = found
    return stop_words


@njit(cache=True, nogil=True)
def _scan_unit(buf, pos, end, classes):  # type: ignore[no-untyped-def]
    """The rule of chars.next_unit, with measures for its hash: (start, stop, characters, alphabetic, unsegmented)."""
    kind, after = OTHER, pos
    while pos < end:
        if buf[pos] < 0x80:  # most bytes: not worth a call
            code_point, after = np.int64(buf[pos]), pos + 1
        else:
            code_point, after = decode(buf, pos, end)
        kind = classes[code_point]
        if kind >= MARK:
            break
        pos = after
    if pos >= end:
        return end, end, 0, False, False
    start, stop, chars = pos, after, 1
    unsegmented = kind == UNSEGMENTED
    alphabetic = kind >= LETTER
    while stop < end:
        if buf[stop] < 0x80:
            code_point, after = np.int64(buf[stop]), stop + 1
        else:
            code_point, after = decode(buf, stop, end)
        kind = classes[code_point]
        if unsegmented:
            if kind != MARK:
                break
        elif kind == APOSTROPHE:
            if after == end or classes[decode(buf, after, end)[0]] != LETTER:
                break
        elif kind < MARK or kind == UNSEGMENTED:
            break
        alphabetic |= kind == LETTER
        stop = after
        chars += 1
    return start, stop, chars, alphabetic, unsegmented


@njit(cache=True, nogil=True)
def _is_stop_word(buf, start, stop):  # type: ignore[no-untyped-def]
    """One of: be to of the and that have with."""
    length = stop - start
    if length < 2 or length > 4:
        return False
    packed = np.int64(0)
    for i in range(start, stop):
        packed = (packed << 8) | np.int64(buf[i])
    if length == 2:
        return packed == 0x6265 or packed == 0x746F or packed == 0x6F66
    if length == 3:
        return packed == 0x746865 or packed == 0x616E64
    return packed == 0x74686174 or packed == 0x68617665 or packed == 0x77697468


@njit(cache=True, nogil=True)
def _count_symbols(buf, begin, end):  # type: ignore[no-untyped-def]
    """(#, ellipses, curly braces that open) in a text."""
    hashes, ellipses, braces, dots = 0, 0, 0, 0
    for pos in range(begin, end):
        byte = buf[pos]
        if byte == _DOT:
            dots += 1
            if dots == 3:
                ellipses += 1
                dots = 0
            continue
        dots = 0
        hashes += byte == _HASH
        braces += byte == _BRACE
        if byte == 0xE2 and pos + 2 < end and buf[pos + 1] == 0x80 and buf[pos + 2] == 0xA6:
            ellipses += 1
    return hashes, ellipses, braces


@njit(cache=True, nogil=True)
def _ratio(part, whole):  # type: ignore[no-untyped-def]
    return part / whole if whole > 0 else 0.0

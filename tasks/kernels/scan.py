"""One walk over a document: its lines, its units, and what can be counted on the way.

Every character is decoded once and looked up once, in a table of flags by code point; ASCII words are measured eight bytes at a
time. A unit (tasks.kernels.chars has the rule) gets its id the moment it ends, so that look-ups overlap with reading on. Tables
start small and double with what they hold, so that they stay in cache for documents of any length.

One long loop on purpose: what a walk costs here is branches that cannot be foreseen and calls with many arrays, so helpers are
inlined (`inline="always"`) and the arrays are unpacked once per document. The rules of C4 are those of tasks.kernels.c4.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from tasks.kernels import c4, inner
from tasks.kernels.chars import APOSTROPHE, LETTER, MARK, SPACE, UNSEGMENTED, char_classes, decode
from tasks.kernels.interning import SMALLEST_MASK, grow, intern_span, load_word, span_key, trailing_zeros
from tasks.kernels.lines import BULLETS, TERMINALS, ends_in_dots

SHORT_LINE_CHARS = 30

IN_UNIT, IS_LETTER, IS_UNSEGMENTED, IS_MARK, IS_APOSTROPHE = 1, 2, 4, 8, 32
_BULLET, _TERMINAL = 1, 2
_NEWLINE, _SPACE, _HASH, _DOT, _BRACE, _ELLIPSIS = map(ord, "\n #.{…")
_QUESTION, _EXCLAMATION, _QUOTE, _APOSTROPHE, _ROUND, _SQUARE, _BRACKET = map(ord, "?!\"')][")
_LOW_BITS, _HIGH_BITS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)


@lru_cache(maxsize=1)
def char_flags() -> np.ndarray:
    """What the walk asks of a code point, uint8[0x110000]: IN_UNIT and the others above."""
    classes = char_classes()
    flags = np.where(classes >= MARK, IN_UNIT, 0)
    for kind, flag in (
        (LETTER, IS_LETTER),
        (UNSEGMENTED, IS_UNSEGMENTED),
        (MARK, IS_MARK),
        (SPACE, c4.IS_SPACE),
        (APOSTROPHE, IS_APOSTROPHE),
    ):
        flags |= np.where(classes == kind, flag, 0)
    table = flags.astype(np.uint8)
    table.setflags(write=False)
    return table


@lru_cache(maxsize=1)
def line_marks() -> np.ndarray:
    """uint8 by code point: bit 0 for BULLETS, bit 1 for TERMINALS."""
    table = np.zeros(len(char_classes()), np.uint8)
    table[[ord(char) for char in BULLETS]] |= _BULLET
    table[[ord(char) for char in TERMINALS]] |= _TERMINAL
    table.setflags(write=False)
    return table


@njit(nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _letters_and_unit_bytes(word):  # type: ignore[no-untyped-def]
    """The high bits of those bytes of a word that are ASCII letters, and of those that are ASCII letters, digits or `_`.

    Eight comparisons in one, without branches: a word's length is what a processor cannot foresee. Sums of seven-bit bytes do not
    carry into their neighbours.
    """
    low = word & _LOW_BITS
    lower = low | np.uint64(0x2020202020202020)
    letters = (lower + np.uint64(0x1F1F1F1F1F1F1F1F)) & ~(lower + np.uint64(0x0505050505050505))
    digits = (low + np.uint64(0x5050505050505050)) & ~(low + np.uint64(0x4646464646464646))
    connectors = ~((low ^ np.uint64(0x5F5F5F5F5F5F5F5F)) + _LOW_BITS)
    ascii_bytes = ~word & _HIGH_BITS
    return letters & ascii_bytes, (letters | digits | connectors) & ascii_bytes


@inner
def scan_document(  # type: ignore[no-untyped-def]
    buf,
    begin,
    end,
    tables,
    c4_tables,
    lines,
    line_spans,
    line_table,
    units,
    unit_spans,
    unit_table,
    generation,
    stripped,
    c4_totals,
):
    """Find and number the lines and units of buf[begin:end].

    tables: char_flags and line_marks. Fills
    lines: characters, ids and paragraph numbers; line_spans, unit_spans: starts, stops and keys by id;
    units: ids, char_sums (characters in the units before each; one entry more than units), counts by id;
    c4_totals: what tasks.kernels.c4 says of the lines, with `stripped` as room for the longest line without its citations.
    `generation` is that of the last use of either table.
    Returns (the last generation used, lines, distinct units, units), the number of paragraphs, and the counts
    (characters, newlines, bullet, ellipsis, terminal and short lines, duplicate lines, their characters, characters of all lines)
    and (unsegmented and alphabetic units, characters of segmented units and of the longest, #, ellipses, curly braces that open).
    """
    flags, marks = tables
    heads = c4_tables[4]
    line_chars, line_ids, paragraphs = lines
    line_starts, line_stops, line_keys = line_spans
    unit_starts, unit_stops, unit_keys = unit_spans
    unit_ids, char_sums, unit_counts = units
    line_generation, unit_generation = generation + 1, generation + 2
    generation += 2
    line_mask, unit_mask, num_line_ids, num_unit_ids = np.int64(SMALLEST_MASK), np.int64(SMALLEST_MASK), np.int64(0), np.int64(0)
    num_lines, num_paragraphs, num_newlines = 0, 0, 0
    bullet, ellipsis, terminal, short, dup, dup_chars, all_chars = 0, 0, 0, 0, 0, 0, 0
    num_units, unsegmented, alphabetic, word_chars, longest = 0, 0, 0, 0, 0
    hashes, ellipses, braces, dots, after_dot = 0, 0, 0, 0, -1
    # Characters up to a position are the bytes up to it that begin one: all but `tails`.
    tails, unit_chars = 0, 0
    last_full_word = len(buf) - 8
    blank_before = True
    for i in range(c4.MEASURES):
        c4_totals[i] = 0
    char_sums[0] = 0
    pos = begin
    while pos < end:
        line_start, line_stop, start_tails, stop_tails, first, last = np.int64(-1), pos, 0, 0, np.int64(0), np.int64(0)
        # For C4: words parted by white space, the first character of this one, and where the last sentence ended.
        between, words, word_begin, longest_word, sentences, ended_at = True, 0, 0, 0, 0, -1
        phrases, braces_before, bracket = 0, braces, False
        while pos < end:
            char, after = np.int64(buf[pos]), pos + 1
            if char >= 0x80:
                char, after = decode(buf, pos, end)
            flag = flags[char]

            if flag & IN_UNIT:
                start = pos
                if line_start < 0:
                    line_start, start_tails, first = pos, tails, char
                words += between
                word_begin = pos - tails if between else word_begin
                between = False
                length, letters, key = 0, np.uint64(0), np.uint64(0)
                if char < 0x80 and pos <= last_full_word:
                    word = load_word(buf, pos)
                    letters, in_unit = _letters_and_unit_bytes(word)
                    length = trailing_zeros(~in_unit & _HIGH_BITS) >> 3
                    length = length if length < end - pos else end - pos  # as below: min and max take seconds to compile
                    if length < 8:
                        below = (np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)
                        key = (word & below) | (np.uint64(length) << np.uint64(56))
                        letters &= below
                    pos += length
                if length > 0 and length < 8 and (pos == end or (buf[pos] < 0x80 and buf[pos] != _APOSTROPHE)):
                    chars = length
                    alphabetic += letters != 0
                    word_chars += length
                else:
                    pos = start
                    tails_before = tails
                    seen = flag
                    tails += after - pos - 1
                    pos = after
                    if flag & IS_UNSEGMENTED:
                        while pos < end and buf[pos] >= 0x80:
                            char, after = decode(buf, pos, end)
                            if not flags[char] & IS_MARK:
                                break
                            tails += after - pos - 1
                            pos = after
                        unsegmented += 1
                    else:
                        while pos < end:
                            char, after = np.int64(buf[pos]), pos + 1
                            if char >= 0x80:
                                char, after = decode(buf, pos, end)
                            flag = flags[char]
                            if not flag & IN_UNIT:
                                if not flag & IS_APOSTROPHE or after == end or not flags[decode(buf, after, end)[0]] & IS_LETTER:
                                    break
                            elif flag & IS_UNSEGMENTED:
                                break
                            seen |= flag
                            tails += after - pos - 1
                            pos = after
                    chars = (pos - start) - (tails - tails_before)
                    if not seen & IS_UNSEGMENTED:
                        word_chars += chars
                    alphabetic += seen & (IS_LETTER | IS_UNSEGMENTED) != 0
                    key = span_key(buf, start, pos)
                    if pos - start >= 10:
                        phrases |= c4.find_javascript(buf, start, pos, c4_tables)
                longest = chars if chars > longest else longest
                line_stop, stop_tails, last = pos, tails, np.int64(0)
                found = intern_span(
                    buf, start, pos, key, unit_starts, unit_stops, unit_keys, num_unit_ids, unit_table, unit_generation, unit_mask
                )
                if found == num_unit_ids:
                    num_unit_ids += 1
                    unit_counts[found] = 0
                    if 2 * num_unit_ids > unit_mask:
                        generation += 1
                        unit_generation, unit_mask = generation, 2 * unit_mask + 1
                        grow(unit_keys, num_unit_ids, unit_table, unit_generation, unit_mask)
                unit_counts[found] += 1
                unit_ids[num_units] = found
                num_units += 1
                unit_chars += chars
                char_sums[num_units] = unit_chars
                continue

            if flag & c4.IS_SPACE:
                if not between:
                    chars = pos - tails - word_begin
                    longest_word = chars if chars > longest_word else longest_word
                    sentences += ended_at == pos
                    between = True
                if char == _NEWLINE:
                    num_newlines += 1
                    pos = after
                    break
                if char == _SPACE and line_start >= 0 and after < end:
                    candidates = heads[0, buf[pos - 1]] & heads[1, buf[after]]
                    if candidates:
                        phrases |= c4.phrases_at(buf, line_start, end, pos, candidates, c4_tables)
            else:
                if line_start < 0:
                    line_start, start_tails, first = pos, tails, char
                words += between
                word_begin = pos - tails if between else word_begin
                between = False
                last = char
                if char == _DOT:
                    dots = dots + 1 if after_dot == pos else 1
                    after_dot = after
                    if dots == 3:
                        ellipses += 1
                        dots = 0
                closes = char in (_QUOTE, _APOSTROPHE, _ROUND, _SQUARE)
                if char in (_DOT, _QUESTION, _EXCLAMATION) or (closes and ended_at == pos):
                    ended_at = after
                hashes += char == _HASH
                braces += char == _BRACE
                bracket |= char == _BRACKET
                ellipses += char == _ELLIPSIS
                line_stop, stop_tails = after, tails + after - pos - 1
            tails += after - pos - 1
            pos = after

        if line_start < 0:
            blank_before = True
            continue
        num_paragraphs += blank_before
        blank_before = False
        chars = (line_stop - line_start) - (stop_tails - start_tails)
        key = span_key(buf, line_start, line_stop)
        found = intern_span(
            buf,
            line_start,
            line_stop,
            key,
            line_starts,
            line_stops,
            line_keys,
            num_line_ids,
            line_table,
            line_generation,
            line_mask,
        )
        if found == num_line_ids:
            num_line_ids += 1
            if 2 * num_line_ids > line_mask:
                generation += 1
                line_generation, line_mask = generation, 2 * line_mask + 1
                grow(line_keys, num_line_ids, line_table, line_generation, line_mask)
        else:
            dup += 1
            dup_chars += chars
        all_chars += chars
        short += chars <= SHORT_LINE_CHARS
        bullet += (marks[first] & _BULLET) != 0
        terminal += (marks[last] & _TERMINAL) != 0
        ends_in_three = ends_in_dots(buf, line_start, line_stop)
        ellipsis += last == _ELLIPSIS or ends_in_three
        line_chars[num_lines], line_ids[num_lines], paragraphs[num_lines] = chars, found, num_paragraphs - 1
        num_lines += 1
        if not between:  # the text ends in this line
            word_chars_left = pos - tails - word_begin
            longest_word = word_chars_left if word_chars_left > longest_word else longest_word
        # What follows the last end of a sentence is one more; an end at the end was counted already if white space followed.
        sentences += 1 - (between and ended_at == line_stop)
        if bracket:
            c4.judge_cited_line(buf, line_start, line_stop, words, longest_word, flags, c4_tables, stripped, c4_totals)
        else:
            ends_well = (last in (_DOT, _QUESTION, _EXCLAMATION, _QUOTE)) and not ends_in_three
            c4.judge_line(words, words, longest_word, sentences, phrases, braces > braces_before, ends_well, c4_totals)
    sizes = (generation, num_lines, num_unit_ids, num_units)
    of_lines = ((end - begin) - tails, num_newlines, bullet, ellipsis, terminal, short, dup, dup_chars, all_chars)
    of_units = (unsegmented, alphabetic, word_chars, longest, hashes, ellipses, braces)
    return sizes, num_paragraphs, of_lines, of_units

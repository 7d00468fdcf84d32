"""Finds lines, their beginnings and ends, and which lines and paragraphs came before.

A line is what stands between newlines, trimmed of white space; blank lines are none. A paragraph is
a maximal run of lines with no blank line between, and equals another when their lines do. Exact:
equality is by content, not by hash. Lines are counted over by bits (tasks.kernels.text.bitmaps),
and read only where tasks.kernels.quality.c4 may find more in them than words and ends.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tasks.definitions.c4_kinds import LONG_WORD_CHARS
from tasks.kernels import inlined, inner
from tasks.kernels.quality import c4
from tasks.kernels.text.bitmaps import (
    NEWLINES,
    NUM_MAPS,
    ODD,
    SENTENCE_ENDS,
    SPACES,
    STARTS,
    TAILS,
    class_at,
    count_ones,
    trailing_zeros,
)
from tasks.kernels.text.chars import NUM_CODE_POINTS
from tasks.kernels.text.interning import (
    HALF,
    PRIME,
    clear_table,
    first_slot,
    intern_span,
    known_id,
    padded_key,
)

BULLETS = "•‣▶◀◦■□▪▫–-*"
"""RedPajama's ten, `-` of DataTrove and `*` of dolma."""

TERMINALS = ".?!…‼⁇⁈⁉。．｡！？؟۔।॥։;׃።፧፨᠃᠉၊။។៕།༎᙮" + "\"'”’」』"
"""Ends of sentences in many scripts, and the quotation marks that may close one (C4 has the ASCII
ones)."""

SHORT_LINE_CHARS = 30
PAGE_LINES, PAGE_HEADS = 16, 3
"""A line that occurs PAGE_HEADS times, never within PAGE_LINES lines, is the running head of
pages."""

_BULLET, _TERMINAL, _ELLIPSIS = 1, 2, 4
_DOT, _QUESTION, _EXCLAMATION, _QUOTE = map(ord, '.?!"')
_ZERO, _ONE, _TOP, _ALL = np.uint64(0), np.uint64(1), np.uint64(63), np.uint64(0xFFFFFFFFFFFFFFFF)
# Numbers of set bits before each word of a bitmap that a line is counted over with.
_COUNTED = (STARTS, SENTENCE_ENDS, TAILS, ODD)
_STARTS, _SENTENCES, _TAILS, _ODD = range(4)


@lru_cache(maxsize=1)
def line_marks() -> np.ndarray:
    """uint8 by code point: bit 0 for BULLETS, bit 1 for TERMINALS, bit 2 for `…`."""
    table = np.zeros(NUM_CODE_POINTS, np.uint8)
    table[[ord(char) for char in BULLETS]] |= _BULLET
    table[[ord(char) for char in TERMINALS]] |= _TERMINAL
    table[ord("…")] |= _ELLIPSIS
    table.setflags(write=False)
    return table


@inlined
def _ones_between(maps, sums, kind, column, first, last):  # type: ignore[no-untyped-def]
    """How many bits of a bitmap are set from one offset up to another."""
    word, end = first >> 6, last >> 6
    below, within = (_ONE << np.uint64(first & 63)) - _ONE, (_ONE << np.uint64(last & 63)) - _ONE
    before = sums[4 * word + column] + count_ones(maps[NUM_MAPS * word + kind] & below)
    return sums[4 * end + column] + count_ones(maps[NUM_MAPS * end + kind] & within) - before


@inner
def _sum_bits(maps, num_words, sums):  # type: ignore[no-untyped-def]
    starts, sentences, tails, odd = 0, 0, 0, 0
    for word in range(num_words):
        base = 4 * word
        sums[base], sums[base + 1], sums[base + 2], sums[base + 3] = starts, sentences, tails, odd
        base = NUM_MAPS * word
        starts += count_ones(maps[base + STARTS])
        sentences += count_ones(maps[base + SENTENCE_ENDS])
        tails += count_ones(maps[base + TAILS])
        odd += count_ones(maps[base + ODD])


@inner
def _trim(maps, start, stop):  # type: ignore[no-untyped-def]
    """(first, behind the last) of the bytes from `start` to `stop` that are not white space; both
    are `stop` where all are."""
    pos = start
    while pos < stop:
        others = ~maps[NUM_MAPS * (pos >> 6) + SPACES] >> np.uint64(pos & 63)
        if others:
            pos += trailing_zeros(others)
            break
        pos = (pos | 63) + 1
    if pos >= stop:
        return stop, stop
    while (maps[NUM_MAPS * ((stop - 1) >> 6) + SPACES] >> np.uint64((stop - 1) & 63)) & _ONE:
        stop -= 1
    return pos, stop


@inner
def _longest_word(maps, start, stop):  # type: ignore[no-untyped-def]
    """Characters of the longest word from `start` to `stop`; may be 0 where none has over
    LONG_WORD_CHARS."""
    if stop - start <= LONG_WORD_CHARS:
        return 0
    # A word of so many characters fills whole words of the bitmap, one after another.
    filled, most = 0, 0
    for word in range((start >> 6) + 1, stop >> 6):
        filled = filled + 1 if maps[NUM_MAPS * word + SPACES] == _ZERO else 0
        most = filled if filled > most else most
    if 64 * (most + 2) <= LONG_WORD_CHARS:
        return 0
    longest, chars = 0, 0
    for pos in range(start, stop):
        word, place = NUM_MAPS * (pos >> 6), np.uint64(pos & 63)
        chars += ((maps[word + TAILS] >> place) & _ONE) == _ZERO
        if (maps[word + SPACES] >> place) & _ONE:
            chars = 0
        longest = chars if chars > longest else longest
    return longest


@inner
def measure_lines(  # type: ignore[no-untyped-def]
    buf,
    begin,
    end,
    bits,
    tables,
    c4_tables,
    lines,
    spans,
    table,
    num_newlines,
    stripped,
    places,
    c4_totals,
):
    """Find, number and measure the lines of buf[begin:end].

    bits: its bitmaps, and room for four numbers a word of a bitmap. tables:
    tasks.kernels.text.bitmaps.char_flags and line_marks. Fills lines: ids, copies by id, and the
    number of lines up to the end of each paragraph; spans: starts, stops, keys and characters by
    id; c4_totals: what tasks.kernels.quality.c4 says of the lines, with `stripped` as room for the
    longest line without its citations, and `places` as room for two numbers a line. Returns the
    numbers of lines and paragraphs; of bullet, ellipsis, terminal, short, bare and duplicate lines;
    characters of duplicate lines and of all; and of lines other than running heads: duplicate
    lines, lines, and the characters of both.
    """
    maps, sums = bits
    flags, marks = tables
    ids, counts, paragraph_stops = lines
    last_seen, nearest = places
    starts, stops, keys, line_chars = spans
    for i in range(c4.MEASURES):
        c4_totals[i] = 0
    size = end - begin
    num_words = (size + 63) >> 6
    # Of lines that are not blank there is at most one every two bytes.
    most_lines = (num_newlines if num_newlines < size >> 1 else size >> 1) + 1
    mask, num_ids = clear_table(table, most_lines), np.int64(0)
    num_lines, num_paragraphs = 0, 0
    blank_before = True
    word, start = 0, 0
    newlines = maps[NEWLINES] if size else _ZERO
    while start < size:
        while newlines == _ZERO and word < num_words:
            word += 1
            newlines = maps[NUM_MAPS * word + NEWLINES]
        line_end = 64 * word + trailing_zeros(newlines) if newlines else size
        newlines &= newlines - _ONE
        first, last = _trim(maps, start, line_end)
        start = line_end + 1
        if first == last:
            blank_before = True
            continue
        if blank_before and num_lines:
            paragraph_stops[num_paragraphs] = num_lines
            num_paragraphs += 1
        blank_before = False
        line_start, line_stop = begin + first, begin + last
        key = padded_key(buf, line_start, line_stop)
        found = intern_span(
            buf, line_start, line_stop, key, starts, stops, keys, num_ids, table, mask
        )
        if found == num_ids:
            counts[found], nearest[found] = 1, PAGE_LINES
            num_ids += 1
        else:
            counts[found] += 1
            distance = num_lines - last_seen[found]
            nearest[found] = distance if distance < nearest[found] else nearest[found]
        last_seen[found] = num_lines
        ids[num_lines] = found
        num_lines += 1
    if num_lines:
        paragraph_stops[num_paragraphs] = num_lines
        num_paragraphs += 1

    # What depends on a line alone is measured once for all its copies.
    bullet, ellipsis, terminal, short, bare, dup_chars, all_chars = 0, 0, 0, 0, 0, 0, 0
    heads, dup_heads, head_chars, dup_head_chars = (
        np.int64(0),
        np.int64(0),
        np.int64(0),
        np.int64(0),
    )
    _sum_bits(maps, num_words + 1, sums)
    has_tails = sums[4 * num_words + _TAILS] > 0
    for line in range(num_ids):
        line_start, line_stop, copies = starts[line], stops[line], np.int64(counts[line])
        first, last = line_start - begin, line_stop - begin
        chars = last - first
        if has_tails:
            chars -= _ones_between(maps, sums, TAILS, _TAILS, first, last)
        line_chars[line] = chars
        dup_chars += chars * (copies - 1)
        all_chars += chars * copies
        short += copies * (chars <= SHORT_LINE_CHARS)
        if copies >= PAGE_HEADS and nearest[line] >= PAGE_LINES:
            heads += copies
            dup_heads += copies - 1
            head_chars += chars * copies
            dup_head_chars += chars * (copies - 1)
        last_char = line_stop - 1
        while last_char > line_start and buf[last_char] & 0xC0 == 0x80:
            last_char -= 1
        mark, closing = class_at(buf, last_char, line_stop, marks), np.int64(buf[last_char])
        bullet += copies * ((class_at(buf, line_start, line_stop, marks) & _BULLET) != 0)
        terminal += copies * ((mark & _TERMINAL) != 0)
        bare += copies * ((mark & _TERMINAL) == 0 and chars <= SHORT_LINE_CHARS)
        in_three_dots = c4.ends_in_dots(buf, line_start, line_stop)
        ellipsis += copies * (mark & _ELLIPSIS != 0 or in_three_dots)

        words = _ones_between(maps, sums, STARTS, _STARTS, first, last)
        longest = _longest_word(maps, first, last)
        if _ones_between(maps, sums, ODD, _ODD, first, last):
            clean_words, ends, found, brace, ends_well = c4.read_clean_line(
                buf, line_start, line_stop, flags, c4_tables, stripped
            )
        else:
            # What follows the last end of a sentence is one more, and so is an end at the end of
            # the line.
            ends = _ones_between(maps, sums, SENTENCE_ENDS, _SENTENCES, first, last) + 1
            ends_well = (closing in (_DOT, _QUESTION, _EXCLAMATION, _QUOTE)) and not in_three_dots
            clean_words, found, brace = words, 0, False
        c4.judge_line(words, clean_words, longest, ends, found, brace, ends_well, copies, c4_totals)
    dup = num_lines - num_ids
    counts = bullet, ellipsis, terminal, short, bare, dup
    body = dup - dup_heads, num_lines - heads, dup_chars - dup_head_chars, all_chars - head_chars
    return num_lines, num_paragraphs, counts, dup_chars, all_chars, body


@inner
def duplicate_paragraphs(lines, line_chars, num_paragraphs, keys, table):  # type: ignore[no-untyped-def]
    """(paragraphs that came before, their characters) of lines, and their characters by id, as
    `measure_lines` fills them.

    A paragraph is looked up by the hash of its line ids; those of equal hash are compared. keys:
    room for a number of each.
    """
    ids, _, stops = lines
    mask = clear_table(table, num_paragraphs)
    dup, dup_chars = 0, 0
    start = np.int64(0)
    for paragraph in range(num_paragraphs):
        stop = np.int64(stops[paragraph])
        key, chars = np.uint64(stop - start), 0
        for i in range(start, stop):
            key = (key ^ np.uint64(ids[i])) * PRIME
            key ^= key >> HALF
            chars += line_chars[ids[i]]
        keys[paragraph] = key
        slot = first_slot(key, mask)
        while True:
            found = known_id(table, slot, paragraph)
            if keys[found] == key and (
                found == paragraph or _same_lines(ids, stops, found, start, stop - start)
            ):
                break
            slot = (slot + 1) & mask
        table[slot] = found
        dup += found != paragraph
        dup_chars += chars if found != paragraph else 0
        start = stop
    return dup, dup_chars


@inner
def _same_lines(ids, stops, known, start, count):  # type: ignore[no-untyped-def]
    """Whether the paragraph of number `known` has the `count` lines from `start` on."""
    begin = stops[known - 1] if known else 0
    if stops[known] - begin != count:
        return False
    same = 0
    while same < count and ids[begin + same] == ids[start + same]:
        same += 1
    return same == count

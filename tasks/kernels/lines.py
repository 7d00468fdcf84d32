"""Lines and paragraphs of a document: where they are, how they begin and end, and which of them came before.

A line is what stands between newlines, trimmed of white space; blank lines are none. A paragraph is a maximal run of lines with
no blank line between, and equals another when their lines do. Exact: equality is by content, not by hash.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from tasks.kernels.chars import NUM_CODE_POINTS, SPACE, decode
from tasks.kernels.interning import intern_pair, intern_span, table_mask

SHORT_LINE_CHARS = 30
BULLETS = "•‣▶◀◦■□▪▫–-*"
"""RedPajama's ten, `-` of DataTrove and `*` of dolma."""

TERMINALS = ".?!…‼⁇⁈⁉。．｡！？؟۔।॥։;׃።፧፨᠃᠉၊။។៕།༎᙮" + "\"'”’」』"
"""Ends of sentences in many scripts, and the quotation marks that may close one (C4 has the ASCII ones)."""

_BULLET, _TERMINAL = 1, 2
_NEWLINE, _DOT, _ELLIPSIS = ord("\n"), ord("."), ord("…")


@lru_cache(maxsize=1)
def line_marks() -> np.ndarray:
    """uint8 by code point: bit 0 for BULLETS, bit 1 for TERMINALS."""
    table = np.zeros(NUM_CODE_POINTS, np.uint8)
    table[[ord(char) for char in BULLETS]] |= _BULLET
    table[[ord(char) for char in TERMINALS]] |= _TERMINAL
    table.setflags(write=False)
    return table


@njit(cache=True, nogil=True)
def trim(buf, start, stop, classes):  # type: ignore[no-untyped-def]
    """(start, stop, first, last character) of a span without the white space around it; start == stop where it is blank."""
    first, last = np.int64(0), np.int64(0)
    while start < stop:
        first, after = decode(buf, start, stop)
        if classes[first] != SPACE:
            break
        start = after
    while stop > start:
        before = stop - 1
        while before > start and (buf[before] & 0xC0) == 0x80:
            before -= 1
        last, _ = decode(buf, before, stop)
        if classes[last] != SPACE:
            break
        stop = before
    return start, stop, first, last


@njit(cache=True, nogil=True)
def count_chars(buf, start, stop):  # type: ignore[no-untyped-def]
    """Code points in valid UTF-8."""
    count = 0
    for i in range(start, stop):
        count += (buf[i] & 0xC0) != 0x80
    return count


@njit(cache=True, nogil=True)
def scan_lines(buf, begin, end, classes, marks, lines, spans, table, generation):  # type: ignore[no-untyped-def]
    """Find the lines of a document and measure them.

    Fills `lines`: starts, stops, characters, ids and paragraph numbers, with room for one line per two bytes and one more.
    Returns (lines, newlines, bullet, ellipsis, terminal and short lines, duplicate lines, their characters, characters of all
    lines).
    """
    starts, stops, chars, ids, paragraphs = lines
    mask = table_mask((end - begin) // 2 + 1)
    num_lines, num_ids, num_paragraphs, num_newlines = 0, 0, 0, 0
    bullet, ellipsis, terminal, short, dup, dup_chars, all_chars = 0, 0, 0, 0, 0, 0, 0
    blank_before = True
    pos = begin
    while pos < end:
        line_end = pos
        while line_end < end and buf[line_end] != _NEWLINE:
            line_end += 1
        num_newlines += line_end < end
        start, stop, first, last = trim(buf, pos, line_end, classes)
        pos = line_end + 1
        if start == stop:
            blank_before = True
            continue
        num_paragraphs += blank_before
        blank_before = False
        line_chars = count_chars(buf, start, stop)
        found = intern_span(buf, start, stop, spans, num_ids, table, generation, mask)
        if found == num_ids:
            num_ids += 1
        else:
            dup += 1
            dup_chars += line_chars
        all_chars += line_chars
        short += line_chars <= SHORT_LINE_CHARS
        bullet += (marks[first] & _BULLET) != 0
        terminal += (marks[last] & _TERMINAL) != 0
        ellipsis += last == _ELLIPSIS or ends_in_dots(buf, start, stop)
        starts[num_lines], stops[num_lines], chars[num_lines] = start, stop, line_chars
        ids[num_lines], paragraphs[num_lines] = found, num_paragraphs - 1
        num_lines += 1
    return num_lines, num_newlines, bullet, ellipsis, terminal, short, dup, dup_chars, all_chars


@njit(cache=True, nogil=True)
def ends_in_dots(buf, start, stop):  # type: ignore[no-untyped-def]
    """Whether a span ends in `...`."""
    return stop - start >= 3 and buf[stop - 1] == _DOT and buf[stop - 2] == _DOT and buf[stop - 3] == _DOT


@njit(cache=True, nogil=True)
def scan_paragraphs(lines, num_lines, counts, table, generation):  # type: ignore[no-untyped-def]
    """(paragraphs, duplicate paragraphs, their characters). `counts` has room for two numbers more than lines.

    A paragraph is a path in the tree whose edges are line ids; equal paragraphs end in the same node.
    """
    _, _, chars, ids, paragraphs = lines
    mask = table_mask(num_lines + 1)
    num_nodes, dup, dup_chars = 1, 0, 0
    counts[: num_lines + 2] = 0
    node, paragraph_chars, num_paragraphs = 0, 0, 0
    for i in range(num_lines):
        child = intern_pair(node, ids[i], num_nodes, table, generation, mask)
        num_nodes += child == num_nodes
        node = child
        paragraph_chars += chars[i]
        if i + 1 == num_lines or paragraphs[i + 1] != paragraphs[i]:
            if counts[node] > 0:
                dup += 1
                dup_chars += paragraph_chars
            counts[node] += 1
            num_paragraphs += 1
            node, paragraph_chars = 0, 0
    return num_paragraphs, dup, dup_chars

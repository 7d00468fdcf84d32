"""Finds the lines or paragraphs of a text, and whether anything is left without some of them.

A line is what stands between newlines, trimmed of white space; a blank one is none. A paragraph is
a run of lines without a blank one between. A piece reaches to where the next one begins: what is
cut takes its own line end and blank lines along.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.chars import MARK, SPACE, decode, next_unit

_NEWLINE = ord("\n")


@njit(cache=True, nogil=True)
def find_pieces(texts, begins, rows, by_line, min_units, classes, folds):  # type: ignore[no-untyped-def]
    """Pieces of at least `min_units` units in texts `rows`: place in rows, and start, stop and
    reach in buf."""
    # Helpers are given where arrays lie: each call with an array counts its references.
    buf, classes, folds = pointers((texts, classes, folds))
    room = 1024
    owners, starts = np.empty(room, np.int32), np.empty(room, np.int64)
    stops, reaches = np.empty(room, np.int64), np.empty(room, np.int64)
    count = 0
    for i in range(rows.size):
        begin, end = begins[rows[i]], begins[rows[i] + 1]
        pos = begin
        open_piece = False  # the piece at `count` may go on
        last_reach = -1  # the piece whose reach is not known yet
        while pos < end:
            line_end = pos
            while line_end < end and buf[line_end] != _NEWLINE:
                line_end += 1
            start, stop = _trim(buf, pos, line_end, classes)
            pos = line_end + 1
            if start == stop:
                open_piece = False
                continue
            if open_piece and not by_line:
                stops[count - 1] = stop
                continue
            if last_reach >= 0:
                reaches[last_reach] = start
                first, last = starts[last_reach], stops[last_reach]
                count -= not _has_units(buf, first, last, min_units, classes, folds)
            if count == room:
                room *= 2
                owners, starts = _larger(owners, room), _larger(starts, room)
                stops, reaches = _larger(stops, room), _larger(reaches, room)
            owners[count], starts[count], stops[count], reaches[count] = i, start, stop, end
            last_reach = count
            count += 1
            open_piece = True
        if last_reach >= 0:
            first, last = starts[last_reach], stops[last_reach]
            count -= not _has_units(buf, first, last, min_units, classes, folds)
    owners, starts = owners[:count].copy(), starts[:count].copy()
    return owners, starts, stops[:count].copy(), reaches[:count].copy()


@inner
def _trim(buf, start, stop, classes):  # type: ignore[no-untyped-def]
    """(start, stop) of a span without the white space around it; start == stop where it is
    blank."""
    while start < stop:
        c, after = decode(buf, start, stop)
        if classes[c] != SPACE:
            break
        start = after
    while stop > start:
        before = stop - 1
        while before > start and (buf[before] & 0xC0) == 0x80:
            before -= 1
        c, _ = decode(buf, before, stop)
        if classes[c] != SPACE:
            break
        stop = before
    return start, stop


@inner
def _has_units(buf, start, stop, at_least, classes, folds):  # type: ignore[no-untyped-def]
    """Whether a span has so many units."""
    count = 0
    pos = start
    while count < at_least:
        first, pos, _ = next_unit(buf, pos, stop, classes, folds)
        if first == stop:
            return False
        count += 1
    return True


@njit(cache=True, nogil=True)
def has_rest(texts, begins, rows, starts, ends, firsts, classes):  # type: ignore[no-untyped-def]
    """For each document, whether a part of a unit stands outside of its cuts, of which i's are
    firsts[i] .. firsts[i + 1].

    rows, starts, ends: of each cut; offsets are within the text, ordered and disjoint.
    """
    buf = pointers(texts)
    rest = np.zeros(firsts.size - 1, np.bool_)
    for i in range(firsts.size - 1):
        row = rows[firsts[i]]
        pos = begins[row]
        for cut in range(firsts[i], firsts[i + 1] + 1):
            last = cut == firsts[i + 1]
            until = begins[row + 1] if last else begins[row] + starts[cut]
            while pos < until and not rest[i]:
                c, pos = decode(buf, pos, until)
                rest[i] = classes[c] >= MARK
            if rest[i] or last:
                break
            pos = begins[row] + ends[cut]
    return rest


@njit(cache=True, nogil=True)
def subtract(ranges, holes):  # type: ignore[no-untyped-def]
    """What is left of `ranges` outside of `holes`: int64[n, 3] of (document, start, end), ordered
    and disjoint, all three."""
    left = np.empty((len(ranges) + len(holes), 3), np.int64)
    count, hole = 0, 0
    for i in range(len(ranges)):
        document, start, end = ranges[i]
        while hole < len(holes) and (
            holes[hole, 0] < document or (holes[hole, 0] == document and holes[hole, 2] <= start)
        ):
            hole += 1
        at = hole  # a hole may reach into the next range too
        while at < len(holes) and holes[at, 0] == document and holes[at, 1] < end:
            if holes[at, 1] > start:
                left[count, 0], left[count, 1], left[count, 2] = document, start, holes[at, 1]
                count += 1
            start = max(start, holes[at, 2])
            at += 1
        if start < end:
            left[count, 0], left[count, 1], left[count, 2] = document, start, end
            count += 1
    return left[:count].copy()


@njit(cache=True, nogil=True)
def _larger(array, room):  # type: ignore[no-untyped-def]
    larger = np.empty(room, array.dtype)
    larger[: array.size] = array
    return larger

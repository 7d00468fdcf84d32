"""Texts without what was cut, and with replacements for what must not stand there: a merge of
edits, and one walk over buffers.

Edits are byte ranges, overlapping or not. Cuts win: a replacement inside a cut is not written; one
that only reaches into a cut is written, because a rest of what it replaces must never stay.
Overlapping replacements become one range with one replacement, that of the lowest class, and of the
first among equals.

Merged edits are disjoint, in order, and know their replacement or -1: sizes follow from them
without the text. Cost: a pass over the edits, which the caller has sorted, and a copy of the bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

CUT = 0
"""Class of an edit that leaves nothing; higher classes are replacements, the lower the stronger."""


@njit(cache=True, nogil=True)
def merge_edits(lengths, edit_begins, edits, merged, merged_begins):  # type: ignore[no-untyped-def]
    """Fill `merged` (start, end, replacement) and its begins by document; -1, or the document with
    an edit outside of its text.

    edits: int64[num, 4] of (start, end, class, replacement), sorted by start and class within a
    document, whose edits are edit_begins[d] to edit_begins[d + 1]. `merged` has room for as many
    rows.
    """
    most = 0
    for d in range(len(lengths)):
        most = max(most, edit_begins[d + 1] - edit_begins[d])
    cuts, groups = np.empty((most, 2), np.int64), np.empty((most, 4), np.int64)
    at = 0
    merged_begins[0] = 0
    for d in range(len(lengths)):
        num_cuts, num_groups = 0, 0
        for e in range(edit_begins[d], edit_begins[d + 1]):
            start, stop, kind = edits[e, 0], edits[e, 1], edits[e, 2]
            if start < 0 or stop <= start or stop > lengths[d]:
                return d
            if kind == CUT:
                if num_cuts and start <= cuts[num_cuts - 1, 1]:
                    cuts[num_cuts - 1, 1] = max(cuts[num_cuts - 1, 1], stop)
                else:
                    cuts[num_cuts, 0], cuts[num_cuts, 1] = start, stop
                    num_cuts += 1
            elif num_groups and start < groups[num_groups - 1, 1]:
                last = num_groups - 1
                groups[last, 1] = max(groups[last, 1], stop)
                if kind < groups[last, 2]:
                    groups[last, 2], groups[last, 3] = kind, edits[e, 3]
            else:
                groups[num_groups, 0], groups[num_groups, 1] = start, stop
                groups[num_groups, 2], groups[num_groups, 3] = kind, edits[e, 3]
                num_groups += 1
        pos, cut, group = 0, 0, 0
        while cut < num_cuts or group < num_groups:
            if group == num_groups or (cut < num_cuts and cuts[cut, 0] <= groups[group, 0]):
                start, stop, replacement = cuts[cut, 0], cuts[cut, 1], -1
                cut += 1
            else:
                start, stop, replacement = groups[group, 0], groups[group, 1], groups[group, 3]
                group += 1
            # What is over already is inside of a range taken before: cuts lie in replacements and
            # replacements in cuts.
            if stop > pos:
                merged[at, 0], merged[at, 1], merged[at, 2] = max(start, pos), stop, replacement
                at, pos = at + 1, stop
        merged_begins[d + 1] = at
    return -1


@njit(cache=True, nogil=True)
def apply_edits(  # type: ignore[no-untyped-def]
    buf, begins, merged_begins, merged, replacements, replacement_begins, out, out_begins
):
    """Write the edited documents into `out`, whose begins are given; -1, or the document with an
    edit inside of a character."""
    for d in range(len(begins) - 1):
        at, pos, end = out_begins[d], begins[d], begins[d + 1]
        for m in range(merged_begins[d], merged_begins[d + 1]):
            start, stop = begins[d] + merged[m, 0], begins[d] + merged[m, 1]
            replacement = merged[m, 2]
            if (buf[start] & 0xC0) == 0x80 or (stop < end and (buf[stop] & 0xC0) == 0x80):
                return d
            for i in range(start - pos):
                out[at + i] = buf[pos + i]
            at += start - pos
            if replacement >= 0:
                first, last = replacement_begins[replacement], replacement_begins[replacement + 1]
                for i in range(first, last):
                    out[at] = replacements[i]
                    at += 1
            pos = stop
        for i in range(end - pos):
            out[at + i] = buf[pos + i]
    return -1


@njit(cache=True, nogil=True)
def shows_ascii(buf, begins, rows):  # type: ignore[no-untyped-def]
    """Whether a text has an ASCII character that shows, for each of the rows."""
    shows = np.zeros(len(rows), np.bool_)
    for i in range(len(rows)):
        for pos in range(begins[rows[i]], begins[rows[i] + 1]):
            if 0x20 < buf[pos] < 0x7F:
                shows[i] = True
                break
    return shows

"""Texts without what was cut, and with replacements for what must not stand there: one walk over Arrow buffers.

Edits are byte ranges, overlapping or not. Cuts win: a replacement inside a cut is not written; one that only reaches into a cut
is written, because a rest of what it replaces must never stay. Overlapping replacements become one range with one replacement,
that of the lowest class, and of the first among equals.

Cost: a copy of the bytes, and sorting by the caller. Out: new bytes and offsets, and for each document whether anything was cut
and whether something that shows is certainly left.
"""

from __future__ import annotations

import numpy as np
from numba import njit

CUT = 0
"""Class of an edit that leaves nothing; higher classes are replacements, the lower the stronger."""
UNCUT, VISIBLE, PERHAPS_BLANK = range(3)
"""States of an edited text: nothing was cut; cut, and an ASCII character that shows is left; cut, and none is."""


@njit(cache=True, nogil=True)
def apply_edits(buf, begins, edit_begins, edits, replacements, replacement_begins, out, out_begins, states):  # type: ignore[no-untyped-def]
    """Write the edited documents into `out` and `out_begins`; -1, or the document with an edit that no text can have.

    edits: int64[num, 4] of (start, end, class, replacement), sorted by start and class within a document, whose edits are
    edit_begins[d] to edit_begins[d + 1]. `out` has room for all bytes and all replacements.
    """
    most = 0
    for d in range(len(begins) - 1):
        most = max(most, edit_begins[d + 1] - edit_begins[d])
    cuts, groups = np.empty((most, 2), np.int64), np.empty((most, 4), np.int64)
    at = 0
    out_begins[0] = 0
    for d in range(len(begins) - 1):
        begin, end = begins[d], begins[d + 1]
        num_cuts, num_groups = 0, 0
        for e in range(edit_begins[d], edit_begins[d + 1]):
            start, stop, kind = begin + edits[e, 0], begin + edits[e, 1], edits[e, 2]
            if start < begin or stop <= start or stop > end or (buf[start] & 0xC0) == 0x80:
                return d
            if stop < end and (buf[stop] & 0xC0) == 0x80:
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
        document_at, pos, cut, group = at, begin, 0, 0
        while cut < num_cuts or group < num_groups:
            if group == num_groups or (cut < num_cuts and cuts[cut, 0] <= groups[group, 0]):
                start, stop, replacement = cuts[cut, 0], cuts[cut, 1], -1
                cut += 1
            else:
                start, stop, replacement = groups[group, 0], groups[group, 1], groups[group, 3]
                # Cuts are taken in order: only the last one taken can hold this range.
                if cut and cuts[cut - 1, 0] <= start and stop <= cuts[cut - 1, 1]:
                    replacement = -1
                group += 1
            while pos < start:
                out[at] = buf[pos]
                at, pos = at + 1, pos + 1
            if replacement >= 0:
                for i in range(replacement_begins[replacement], replacement_begins[replacement + 1]):
                    out[at] = replacements[i]
                    at += 1
            pos = max(pos, stop)
        for i in range(end - pos):
            out[at + i] = buf[pos + i]
        at += max(end - pos, 0)
        out_begins[d + 1] = at
        states[d] = UNCUT
        if num_cuts:
            states[d] = PERHAPS_BLANK
            for i in range(document_at, at):
                if 0x20 < out[i] < 0x7F:
                    states[d] = VISIBLE
                    break
    return -1

"""Gives models of words the units of each text, as 64-bit hashes or as a text with one space
between them.

Units are those of `tasks.kernels.text.chars`: folded words, and single letters in scripts written
without spaces, so that every script has words. Everything else is left out. A text may be cut
anywhere: half a character does not belong to a unit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels.dedup.shingles import unit_hashes
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.chars import next_unit


@njit(cache=True, nogil=True)
def units_of_texts(buf, begins, most_bytes, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the unit hashes of the first `most_bytes` of each text into `out`, one text after
    another; returns their places."""
    places = np.zeros(begins.size, np.int64)
    for i in range(begins.size - 1):
        stop = min(begins[i + 1], begins[i] + most_bytes)
        count = unit_hashes(buf, begins[i], stop, classes, folds, out[places[i] :])
        places[i + 1] = places[i] + count
    return places


@njit(cache=True, nogil=True)
def join_units(text, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the units of a text, unfolded, with single spaces between them; returns the size. `out`
    has twice the room."""
    size, pos, end = 0, 0, text.size
    buf, kinds, folded = pointers((text, classes, folds))
    while True:
        start, stop, _ = next_unit(buf, pos, end, kinds, folded)
        if start == end:
            return size
        if size:
            out[size] = 0x20
            size += 1
        for i in range(start, stop):
            out[size] = buf[i]
            size += 1
        pos = stop

"""Finds runs of units that might occur twice: anchors, few and local, and the windows on chosen
anchors.

A window is `size` units in a row. Its anchor is the least hash among its runs of `ANCHOR_UNITS`
units (winnowing: Schleimer, Wilkerson, Aiken 2003), so equal windows have equal anchors, and
neighbours mostly share one: about 2 / (size - ANCHOR_UNITS + 2) anchors a unit. A window whose
anchor occurs once in the corpus occurs once. The key of a window is two polynomials in its unit
hashes modulo 2^64 with different bases, mixed: 128 bits.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from tasks.kernels.text.chars import document_units, mix64

ANCHOR_UNITS = 16
_BASE_ONE, _BASE_TWO = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


@njit(cache=True, nogil=True)
def anchor_places(units, count, size, grams, places):  # type: ignore[no-untyped-def]
    """For each window of units[:count] the place of its anchor, in `places`; hashes by place in
    `grams`. Returns the windows.

    Among equal least hashes the last one is the anchor.
    """
    num_windows = count - size + 1
    if num_windows <= 0:
        return 0
    for i in range(count - ANCHOR_UNITS + 1):
        h = uint64(0)
        for j in range(i, i + ANCHOR_UNITS):
            h = uint64(h * _BASE_ONE + units[j])
        grams[i] = mix64(h)
    span = size - ANCHOR_UNITS + 1
    best = -1
    for window in range(num_windows):
        if best < window:  # the anchor left: look at all again
            best = window
            for place in range(window + 1, window + span):
                if grams[place] <= grams[best]:
                    best = place
        elif grams[window + span - 1] <= grams[best]:
            best = window + span - 1
        places[window] = best
    return num_windows


@njit(cache=True, nogil=True)
def find_anchors(buf, begins, rows, size, tables, scratch):  # type: ignore[no-untyped-def]
    """The anchors of texts `rows`, each once for each place where it is one."""
    classes, folds = tables
    starts, stops, units, grams, places = scratch
    anchors = np.empty(1024, np.uint64)
    found = 0
    for row in rows:
        count = document_units(
            buf, begins[row], begins[row + 1], classes, folds, starts, stops, units
        )
        num_windows = anchor_places(units, count, size, grams, places)
        if found + num_windows > anchors.size:
            larger = np.empty(2 * (found + num_windows), np.uint64)
            larger[:found] = anchors[:found]
            anchors = larger
        before = -1
        for window in range(num_windows):
            if places[window] != before:
                before = places[window]
                anchors[found] = grams[before]
                found += 1
    return anchors[:found].copy()


@njit(cache=True, nogil=True)
def find_windows(buf, begins, rows, size, chosen, tables, scratch):  # type: ignore[no-untyped-def]
    """Windows of texts `rows` whose anchor is in `chosen` (sorted).

    Returns keys uint64[windows, 2], and int64[windows, 4]: place in rows, first unit, start and end
    as bytes of the text.
    """
    classes, folds = tables
    starts, stops, units, grams, places = scratch
    keys, where = np.empty((1024, 2), np.uint64), np.empty((1024, 4), np.int64)
    found = 0
    leaving_one, leaving_two = uint64(1), uint64(1)
    for _ in range(size - 1):
        leaving_one, leaving_two = uint64(leaving_one * _BASE_ONE), uint64(leaving_two * _BASE_TWO)
    for i in range(rows.size):
        begin = begins[rows[i]]
        count = document_units(
            buf, begin, begins[rows[i] + 1], classes, folds, starts, stops, units
        )
        num_windows = anchor_places(units, count, size, grams, places)
        before, hot = -1, False
        one, two = uint64(0), uint64(0)
        for j in range(min(size - 1, count)):
            one, two = uint64(one * _BASE_ONE + units[j]), uint64(two * _BASE_TWO + units[j])
        for window in range(num_windows):
            last = units[window + size - 1]
            one, two = uint64(one * _BASE_ONE + last), uint64(two * _BASE_TWO + last)
            if places[window] != before:
                before = places[window]
                at = np.searchsorted(chosen, grams[before])
                hot = at < chosen.size and chosen[at] == grams[before]
            if hot:
                if found == len(keys):
                    more_keys = np.empty((2 * found, 2), np.uint64)
                    more = np.empty((2 * found, 4), np.int64)
                    more_keys[:found], more[:found] = keys, where
                    keys, where = more_keys, more
                keys[found, 0], keys[found, 1] = mix64(one), mix64(two)
                where[found, 0], where[found, 1] = i, window
                where[found, 2] = starts[window] - begin
                where[found, 3] = stops[window + size - 1] - begin
                found += 1
            # The first unit leaves both polynomials.
            one = uint64(one - units[window] * leaving_one)
            two = uint64(two - units[window] * leaving_two)
    return keys[:found].copy(), where[:found].copy()


def make_scratch(begins: np.ndarray) -> tuple[np.ndarray, ...]:
    """Room for the units of the longest text: starts, stops, hashes, runs and places."""
    room = int(np.diff(begins).max(initial=0)) + 1
    dtypes = (np.int64, np.int64, np.uint64, np.uint64, np.int64)
    return tuple(np.empty(room, dtype) for dtype in dtypes)

"""Works on rows of candidates: which were rejected before, which are of a kind, which overwrite the
text.

Rows are as `tasks.kernels.pii.spans` makes them: document, start, end, kind, value. Compiled, since
a pass of NumPy over a column of rows reads all of them and makes an array, which took longer than
to find them. Cost: nanoseconds a row.
"""

from __future__ import annotations

import numba
import numpy as np

from tasks.kernels import inner

ROW = 5
"""Numbers of a candidate: range, start, end, kind, value."""
MAX_LOOK_BYTES = 512
"""How far from a candidate lies what decides about it."""


@inner
def _key(start: int, end: int, kind: int) -> int:
    """Packs the place and the kind of a candidate, all that a judge needs, into one number."""
    return (start << 10 | end - start) << 6 | kind


@numba.njit(cache=True, nogil=True, error_model="numpy")
def keys_of(rows: np.ndarray, passed: np.ndarray) -> np.ndarray:
    """What `are_new` asks for, of the rows that did not pass, int64."""
    keys, count = np.empty(len(rows), np.int64), 0
    for r in range(len(rows)):
        if not passed[r]:
            keys[count] = _key(rows[r, 1], rows[r, 2], rows[r, 3])
            count += 1
    return keys[:count]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_new(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which rows have none of the sorted keys. Rows are nearly sorted: steps that double lead from
    the place of the last one."""
    new = np.ones(len(rows), np.bool_)
    count, place = len(known), 0
    for r in range(len(rows) if count > 0 else 0):
        key, width = _key(rows[r, 1], rows[r, 2], rows[r, 3]), 1
        low, high = place, place  # known[low - 1] < key <= known[high], once found
        while low > 0 and known[low - 1] >= key:
            high, low, width = low - 1, max(0, low - width), 2 * width
        if low == place:
            while high < count and known[high] < key:
                low, high, width = high + 1, min(count, high + width), 2 * width
        while low < high:
            middle = (low + high) >> 1
            if known[middle] < key:
                low = middle + 1
            else:
                high = middle
        place = low
        new[r] = place == count or known[place] != key
    return new


@numba.njit(cache=True, nogil=True, error_model="numpy")
def of_kind(rows: np.ndarray, passed: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of the rows that passed are of a kind, and their values; int64."""
    places, values, count = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64), 0
    for r in range(len(rows)):
        if rows[r, 3] == kind and passed[r]:
            places[count], values[count] = r, rows[r, 4]
            count += 1
    return places[:count], values[:count]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def take(masked: np.ndarray, rows: np.ndarray, passed: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Overwrite the spans of the rows that passed with their marks, in order, where no byte of them
    is a mark already; which ones were."""
    taken = np.zeros(len(rows), np.bool_)
    for r in range(len(rows)):
        if not passed[r]:
            continue
        start, end, free = rows[r, 1], rows[r, 2], True
        for i in range(start, end):
            free &= masked[i] != 60 and masked[i] != 42
        if free:
            for i in range(start, end):
                masked[i] = marks[r]
        taken[r] = free
    return taken


@numba.njit(cache=True, nogil=True, error_model="numpy")
def places_around(
    rows: np.ndarray, begins: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(document, first byte, last byte) of what `MAX_LOOK_BYTES` reach around spans in order;
    places that overlap are one."""
    size, count = len(rows), 0
    documents = np.empty(size, np.int64)
    lows, highs = np.empty(size, np.int64), np.empty(size, np.int64)
    for r in range(len(rows)):
        document = rows[r, 0]
        low = max(begins[document], rows[r, 1] - MAX_LOOK_BYTES)
        high = min(begins[document + 1], rows[r, 2] + MAX_LOOK_BYTES)
        if count > 0 and documents[count - 1] == document and low <= highs[count - 1]:
            highs[count - 1] = high
        else:
            documents[count], lows[count], highs[count] = document, low, high
            count += 1
    return documents[:count], lows[:count], highs[:count]

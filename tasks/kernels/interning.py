"""Small numbers for equal things: byte spans and pairs of numbers, exactly, in time linear in their count.

Open addressing with linear probing over a table of three arrays: `stamps` (which generation filled a slot), `keys` and `ids`. A
new generation empties the table without touching it, so one table serves millions of small documents; a mask smaller than the
table keeps a small document in a small, cached region of it. The key of a pair or of a span under 8 bytes is its content; longer
spans of equal hash are compared byte by byte. So equal ids mean equal content: collisions cost time, never truth.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels.chars import mix64

_HASH_SEED = np.uint64(0xCBF29CE484222325)
_HASH_PRIME = np.uint64(0x100000001B3)
_LONG = np.uint64(1 << 63)


@njit(cache=True, nogil=True)
def make_table(num_items):  # type: ignore[no-untyped-def]
    """An empty table for up to `num_items` of one generation; generation 0 is "never filled"."""
    size = table_mask(num_items) + 1
    return np.zeros(size, np.int32), np.empty(size, np.uint64), np.empty(size, np.int32)


@njit(cache=True, nogil=True)
def table_mask(num_items):  # type: ignore[no-untyped-def]
    """Slot mask for a table at most half full with `num_items` in it."""
    size = 16
    while size < 2 * num_items:
        size *= 2
    return size - 1


@njit(cache=True, nogil=True)
def span_key(buf, start, stop):  # type: ignore[no-untyped-def]
    """64 bits for buf[start:stop]: its length and bytes where it has fewer than 8, else a hash of them with the top bit set."""
    if stop - start < 8:
        key = np.uint64(stop - start)
        for i in range(start, stop):
            key = (key << np.uint64(8)) | np.uint64(buf[i])
        return key
    key = _HASH_SEED ^ np.uint64(stop - start)
    pos = start
    while pos < stop:
        # The last eight bytes overlap the ones before: any eight are as good, and equal spans overlap equally.
        pos = min(pos, stop - 8)
        word = np.uint64(0)
        for i in range(8):
            word |= np.uint64(buf[pos + i]) << np.uint64(8 * i)
        key = (key ^ word) * _HASH_PRIME
        key ^= key >> np.uint64(29)
        pos += 8
    return key | _LONG


@njit(cache=True, nogil=True)
def intern_span(buf, start, stop, spans, count, table, generation, mask):  # type: ignore[no-untyped-def]
    """The id of buf[start:stop] among the spans of this generation; it is `count` where the span is new.

    `spans` are two arrays, starts and stops by id; a new span is added there, and the caller raises `count`.
    """
    span_starts, span_stops = spans
    stamps, keys, ids = table
    key = span_key(buf, start, stop)
    slot = np.int64(mix64(key) & np.uint64(mask))
    while stamps[slot] == generation:
        if keys[slot] == key:
            known = np.int64(ids[slot])
            begin = span_starts[known]
            if key < _LONG or (span_stops[known] - begin == stop - start and _same_bytes(buf, begin, start, stop - start)):
                return known
        slot = (slot + 1) & mask
    stamps[slot], keys[slot], ids[slot] = generation, key, count
    span_starts[count], span_stops[count] = start, stop
    return np.int64(count)


@njit(cache=True, nogil=True)
def _same_bytes(buf, first, second, length):  # type: ignore[no-untyped-def]
    i = 0
    while i < length and buf[first + i] == buf[second + i]:
        i += 1
    return i == length


@njit(cache=True, nogil=True)
def intern_pair(first, second, count, table, generation, mask):  # type: ignore[no-untyped-def]
    """The id of a pair of numbers below 2**32 in this generation; it is `count` where the pair is new."""
    stamps, keys, ids = table
    key = (np.uint64(first) << np.uint64(32)) | np.uint64(second)
    slot = np.int64(mix64(key) & np.uint64(mask))
    while stamps[slot] == generation:
        if keys[slot] == key:
            return np.int64(ids[slot])
        slot = (slot + 1) & mask
    stamps[slot], keys[slot], ids[slot] = generation, key, count
    return np.int64(count)

"""Small numbers for equal things: byte spans and pairs of numbers, exactly, in time linear in their
count.

Open addressing with linear probing. A slot is an id of four bytes, so that the table of a small
document, a small region at the beginning of one that serves all, is emptied and looked up in the
nearest cache. Whether a thing is new nobody can foresee, so what is looked up is first written
among the known ones, under the next id; an empty slot reads as that id, and new and known things
take the same way. The key of a pair or of a span under 8 bytes is its content; longer spans of
equal hash are compared byte by byte. So equal ids mean equal content: collisions cost time, never
truth.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import inlined
from tasks.kernels.text.addresses import load_word

_SEED = np.uint64(0x9E3779B97F4A7C15)
PRIME = np.uint64(0xD6E8FEB86659FD93)
_LONG = np.uint64(1 << 63)
HALF = np.uint64(32)
_EMPTY = np.uint32((1 << 32) - 1)


def make_table(num_items: int) -> np.ndarray:
    """Room for the table of up to `num_items`."""
    return np.empty(int(table_mask(num_items)) + 1, np.uint32)


@njit(cache=True, nogil=True)
def table_mask(num_items):  # type: ignore[no-untyped-def]
    """Slot mask for a table at most half full with `num_items` in it."""
    size = 256
    while size < 2 * num_items:
        size *= 2
    return size - 1


@njit(cache=True, nogil=True)
def clear_table(table, num_items):  # type: ignore[no-untyped-def]
    """Empty what `num_items` need of a table; returns their slot mask."""
    mask = table_mask(num_items)
    for slot in range(mask + 1):
        table[slot] = _EMPTY
    return mask


@njit(cache=True, nogil=True, forceinline=True)
def known_id(table, slot, count):  # type: ignore[no-untyped-def]
    """The id in a slot; `count`, that of what is new, where it is empty."""
    found = np.int64(table[slot])
    return found if found < count else np.int64(count)


@inlined
def mixed_words(buf, start, stop, key, prime):  # type: ignore[no-untyped-def]
    """A key mixed with the bytes of a span of 8 or more, eight at a time."""
    pos = start
    while pos < stop:
        # The last eight bytes overlap the ones before: any eight are as good, and equal spans
        # overlap equally.
        pos = pos if pos < stop - 8 else stop - 8
        key = (key ^ load_word(buf, pos)) * prime
        key ^= key >> np.uint64(29)
        pos += 8
    return key


@njit(cache=True, nogil=True, forceinline=True)
def span_key(buf, start, stop):  # type: ignore[no-untyped-def]
    """64 bits for buf[start:stop]: its length and bytes where it has fewer than 8, else a hash of
    them with the top bit set."""
    if start + 8 <= len(buf):
        return padded_key(buf, start, stop)
    word = np.uint64(stop - start) << np.uint64(56)
    for i in range(stop - start):
        word |= np.uint64(buf[start + i]) << np.uint64(8 * i)
    return word


@inlined
def padded_key(buf, start, stop):  # type: ignore[no-untyped-def]
    """The same where eight bytes may be read at any start."""
    length = stop - start
    if length < 8:
        return load_word(buf, start) & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)) | (
            np.uint64(length) << np.uint64(56)
        )
    return mixed_words(buf, start, stop, _SEED ^ np.uint64(length), PRIME) | _LONG


@njit(cache=True, nogil=True, forceinline=True)
def intern_span(buf, start, stop, key, starts, stops, keys, count, table, mask):  # type: ignore[no-untyped-def]
    """The id of buf[start:stop], whose `span_key` is `key`, among `count` known spans; it is
    `count` where it is new.

    starts, stops, keys: of each id, with room for one more than there are. The caller then raises
    `count`; `mask` is what `clear_table` gave for all spans there can be.
    """
    starts[count], stops[count], keys[count] = start, stop, key
    slot = first_slot(key, mask)
    while True:
        found = known_id(table, slot, count)
        if keys[found] == key:
            if key < _LONG or found == count:
                break
            begin = starts[found]
            if stops[found] - begin == stop - start and same_bytes(buf, begin, start, stop - start):
                break
        slot = (slot + 1) & mask
    table[slot] = found
    return found


@njit(cache=True, nogil=True, forceinline=True)
def intern_pair(key, keys, count, table, mask):  # type: ignore[no-untyped-def]
    """The same for a pair of numbers below 2**32 (`pair_key`), of which the keys are known."""
    keys[count] = key
    slot = first_slot(key, mask)
    found = known_id(table, slot, count)
    while keys[found] != key:
        slot = (slot + 1) & mask
        found = known_id(table, slot, count)
    table[slot] = found
    return found


@njit(cache=True, nogil=True, forceinline=True)
def pair_key(first, second):  # type: ignore[no-untyped-def]
    """Two numbers below 2**32 as one."""
    return (np.uint64(first) << HALF) | np.uint64(second)


@njit(cache=True, nogil=True, forceinline=True)
def first_slot(key, mask):  # type: ignore[no-untyped-def]
    """Where to look for a key first."""
    # Both halves of the key reach the upper half of the product, and the upper half is what is
    # taken.
    return np.int64(((key ^ (key >> HALF)) * PRIME) >> HALF) & np.int64(mask)


@njit(cache=True, nogil=True, forceinline=True)
def same_bytes(buf, first, second, length):  # type: ignore[no-untyped-def]
    """Whether two spans of one length, 8 bytes or more, are equal."""
    # The last eight bytes overlap the ones before.
    pos = 0
    while pos < length:
        pos = pos if pos < length - 8 else length - 8
        if load_word(buf, first + pos) != load_word(buf, second + pos):
            return False
        pos += 8
    return True

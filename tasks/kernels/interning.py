"""Small numbers for equal things: byte spans and pairs of numbers, exactly, in time linear in their count.

Open addressing with linear probing. A slot is two numbers side by side, so that a look-up touches one cache line: the key, and a
tag of generation and id. A new generation empties the table without touching it, so one table serves millions of small
documents; a mask smaller than the table keeps a small document in a small, cached region of it. The key of a pair or of a span
under 8 bytes is its content; longer spans of equal hash are compared byte by byte. So equal ids mean equal content: collisions
cost time, never truth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_SEED = np.uint64(0x9E3779B97F4A7C15)
PRIME = np.uint64(0xD6E8FEB86659FD93)
_LONG = np.uint64(1 << 63)
HALF = np.uint64(32)
ID_BITS = np.uint64((1 << 32) - 1)


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """How many of the lowest bits of a number are 0; 64 where all are."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _bytes_at(context, builder, kind, buf, pos):  # type: ignore[no-untyped-def]
    start = buf if isinstance(kind, types.CPointer) else context.make_array(kind)(context, builder, buf).data
    return builder.bitcast(builder.gep(start, [pos]), ir.IntType(64).as_pointer())


@intrinsic
def load_word(typing_context: Any, buf: Any, pos: Any) -> Any:
    """The eight bytes at buf[pos] as one number, `buf` being an array or where one lies; nothing is checked or aligned."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = _bytes_at(context, builder, signature.args[0], *arguments)
        word = builder.load(place)
        word.align = 1
        return word

    return types.uint64(buf, types.int64), generate


@intrinsic
def store_word(typing_context: Any, buf: Any, pos: Any, word: Any) -> Any:
    """Write a number as the eight bytes at buf[pos], as `load_word` reads them."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[2], _bytes_at(context, builder, signature.args[0], *arguments[:2])).align = 1
        return context.get_dummy_value()

    return types.void(buf, types.int64, types.uint64), generate


def make_table(num_items: int) -> np.ndarray:
    """An empty table for up to `num_items` of one generation; generation 0 is "never filled"."""
    return np.zeros(2 * (int(table_mask(num_items)) + 1), np.uint64)


@njit(cache=True, nogil=True)
def table_mask(num_items):  # type: ignore[no-untyped-def]
    """Slot mask for a table at most half full with `num_items` in it."""
    size = 256
    while size < 2 * num_items:
        size *= 2
    return size - 1


@njit(nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def mixed_words(buf, start, stop, key, prime):  # type: ignore[no-untyped-def]
    """A key mixed with the bytes of a span of 8 or more, eight at a time."""
    pos = start
    while pos < stop:
        # The last eight bytes overlap the ones before: any eight are as good, and equal spans overlap equally.
        pos = pos if pos < stop - 8 else stop - 8
        key = (key ^ load_word(buf, pos)) * prime
        key ^= key >> np.uint64(29)
        pos += 8
    return key


@njit(cache=True, nogil=True, forceinline=True)
def span_key(buf, start, stop):  # type: ignore[no-untyped-def]
    """64 bits for buf[start:stop]: its length and bytes where it has fewer than 8, else a hash of them with the top bit set."""
    length = stop - start
    if length < 8:
        if start + 8 <= len(buf):
            word = load_word(buf, start) & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1))
        else:
            word = np.uint64(0)
            for i in range(length):
                word |= np.uint64(buf[start + i]) << np.uint64(8 * i)
        return word | (np.uint64(length) << np.uint64(56))
    return mixed_words(buf, start, stop, _SEED ^ np.uint64(length), PRIME) | _LONG


@njit(cache=True, nogil=True, forceinline=True)
def intern_span(buf, start, stop, key, starts, stops, keys, count, table, generation, mask):  # type: ignore[no-untyped-def]
    """The id of buf[start:stop], whose `span_key` is `key`, among the spans of this generation; it is `count` where it is new.

    starts, stops, keys: of each id; those of a new span are added. The caller then raises `count`; `mask` is the
    `table_mask` of all spans there can be.
    """
    slot = first_slot(key, mask)
    while True:
        tag = table[2 * slot + 1]
        if tag >> HALF != np.uint64(generation):
            table[2 * slot] = key
            table[2 * slot + 1] = (np.uint64(generation) << HALF) | np.uint64(count)
            starts[count], stops[count], keys[count] = start, stop, key
            return np.int64(count)
        if table[2 * slot] == key:
            known = np.int64(tag & ID_BITS)
            if key < _LONG:
                return known
            begin = starts[known]
            if stops[known] - begin == stop - start and same_bytes(buf, begin, start, stop - start):
                return known
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True, forceinline=True)
def intern_pair(key, count, table, generation, mask):  # type: ignore[no-untyped-def]
    """The id of a pair of numbers below 2**32 (`pair_key`) in this generation; it is `count` where the pair is new."""
    tagged = np.uint64(generation) << HALF
    slot = first_slot(key, mask)
    # Whether a pair is new nobody can foresee: both cases take the same way through, and a known pair is written over itself.
    while True:
        tag = table[2 * slot + 1]
        fresh = tag >> HALF != np.uint64(generation)
        if fresh | (table[2 * slot] == key):
            break
        slot = (slot + 1) & mask
    found = np.uint64(count) if fresh else tag & ID_BITS
    table[2 * slot] = key
    table[2 * slot + 1] = tagged | found
    return np.int64(found)


@njit(cache=True, nogil=True, forceinline=True)
def pair_key(first, second):  # type: ignore[no-untyped-def]
    """Two numbers below 2**32 as one."""
    return (np.uint64(first) << HALF) | np.uint64(second)


@njit(cache=True, nogil=True, forceinline=True)
def first_slot(key, mask):  # type: ignore[no-untyped-def]
    """Where to look for a key first."""
    # Both halves of the key reach the upper half of the product, and the upper half is what is taken.
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

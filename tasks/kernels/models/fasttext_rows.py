"""Sums the rows of a fastText model's matrix for a word: its own, and those of its character
n-grams.

The hashes and tables of fastText 0.9 (src/dictionary.cc), for the kernels that apply such models.
Words are bytes; those of the model lie one after another with eight bytes of padding behind the
last. Rows are filled up with zeros to a multiple of LANES numbers. Helpers are given where arrays
lie (`pointers`): an array would be counted, atomically, at each call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from tasks.kernels import inlined, inner
from tasks.kernels.text.addresses import load_word
from tasks.kernels.text.bitmaps import count_ones

FNV_SEED, _FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)
LANES = 16
"""Numbers of a row that are added at once: 64 bytes, a line of the cache."""
_LABEL = np.frombuffer(b"__label__", np.uint8)
_ONE = np.uint64(1)


@inlined
def fnv(value, byte):  # type: ignore[no-untyped-def]
    """FNV-1a of one more byte."""
    # fastText hashes signed bytes: those from 0x80 on set the upper bits too. Numba widens what is
    # not cast at every step.
    return np.uint32(np.uint32(value ^ np.uint32(np.int32(np.int8(byte)))) * _FNV_PRIME)


def lines(count: int, dim: int) -> np.ndarray:
    """float32 [count, `dim` filled up to a multiple of LANES] of zeros, each row at the beginning
    of a line of the cache.

    Arrays of NumPy begin in the middle of one, so that each row would be in two. Large ones lie in
    huge pages, unlike those of `np.zeros`.
    """
    width = -(-dim // LANES) * LANES
    room = np.empty((count * width + LANES) * 4, np.uint8)
    room[:] = 0
    start = -room.ctypes.data % (4 * LANES)
    return room[start : start + count * width * 4].view(np.float32).reshape(count, width)


@intrinsic
def add_rows(
    typing_context: Any, total: Any, at: Any, rows: Any, which: Any, count: Any, width: Any
) -> Any:
    """total[at + k] grows by rows[which[i] * width + k] for each i < count, in that order; LANES of
    k < width at once.

    In memory each sum would wait until the last one was written: here they stay in a register. No
    arrays, but where they lie.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        total, at, rows, which, count, width = arguments
        total = builder.gep(total, [at])
        block = ir.VectorType(ir.FloatType(), LANES)

        def floats_at(base, place):  # type: ignore[no-untyped-def]
            return builder.bitcast(builder.gep(base, [place]), block.as_pointer())

        with cgutils.for_range_slice(
            builder, ir.Constant(width.type, 0), width, ir.Constant(width.type, LANES)
        ) as (k, _):
            sums = cgutils.alloca_once(builder, block)
            builder.store(builder.load(floats_at(total, k), align=4), sums)
            with cgutils.for_range(builder, count) as loop:
                row = builder.load(builder.gep(which, [loop.index]))
                place = builder.add(builder.mul(row, width), k)
                more = builder.load(floats_at(rows, place), align=4)
                builder.store(builder.fadd(builder.load(sums), more), sums)
            builder.store(builder.load(sums), floats_at(total, k), align=4)
        return context.get_dummy_value()

    return types.void(total, types.int64, rows, which, types.int64, types.int64), generate


@njit(cache=True, nogil=True)
def fill_slots(word_bytes, word_ends, slots):  # type: ignore[no-untyped-def]
    """Numbers of words by hash with linear probing; the slots, a power of two and more than there
    are words, are -1 before."""
    first = np.int64(0)
    for number in range(word_ends.size):
        value = FNV_SEED
        for i in range(first, word_ends[number]):
            value = fnv(value, word_bytes[i])
        first = word_ends[number]
        slot = np.int64(value) & (slots.size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = number


@inner
def find_word(buf, limit, start, stop, value, slots, mask, word_bytes, word_ends):  # type: ignore[no-untyped-def]
    """Number of the word buf[start:stop], whose hash is `value`, -1 where the model has none;
    `limit`: bytes of `buf`."""
    slot = np.int64(value) & mask
    while slots[slot] >= 0:
        number = np.int64(slots[slot])
        first = word_ends[number - 1] if number else np.int64(0)
        if word_ends[number] - first == stop - start:
            pos = start
            while pos + 8 <= stop and load_word(buf, pos) == load_word(
                word_bytes, first + pos - start
            ):
                pos += 8
            # What lies behind the words is shifted out of both.
            if pos < stop and stop - pos < 8 and pos + 8 <= limit:
                different = load_word(buf, pos) ^ load_word(word_bytes, first + pos - start)
                rest = different << np.uint64(8 * (8 - (stop - pos)))
                pos = stop if rest == np.uint64(0) else pos
            else:
                while pos < stop and buf[pos] == word_bytes[first + pos - start]:
                    pos += 1
            if pos == stop:
                return number
        slot = (slot + 1) & mask
    return np.int64(-1)


@inner
def is_label(buf, start, stop):  # type: ignore[no-untyped-def]
    """Whether fastText takes a word that the model lacks for a label of the text, and does not read
    it."""
    if stop - start < _LABEL.size:
        return False
    alike = 0
    for i in range(_LABEL.size):
        alike += buf[start + i] == _LABEL[i]
    return alike == _LABEL.size


@inlined
def survived(bits, place):  # type: ignore[no-untyped-def]
    """1 where the n-grams of a bucket survived pruning, else 0."""
    return np.int64((bits[place >> 6] >> np.uint64(place & 63)) & _ONE)


@inlined
def survivors_before(bits, firsts, place):  # type: ignore[no-untyped-def]
    """How many buckets before this one survived: the place of its row."""
    return np.int64(firsts[place >> 6]) + count_ones(
        bits[place >> 6] & ((_ONE << np.uint64(place & 63)) - _ONE)
    )


@inner
def _hash_letters(word, size, shortest, longest, which, count):  # type: ignore[no-untyped-def]
    """Append the hashes of all n-grams of a word of ASCII; as many bytes behind it are read as an
    n-gram is long."""
    for i in range(size):
        value = FNV_SEED
        for n in range(1, longest + 1):
            value = fnv(value, word[i + n - 1])
            # Where words end nobody can foresee: what is not an n-gram is written, too, and not
            # counted.
            which[count] = np.int64(value)
            count += (n >= shortest) & (i + n <= size) & ((n > 1) | ((i > 0) & (i + 1 < size)))
    return count


@inner
def _hash_characters(word, starts, num_chars, shortest, longest, which, count):  # type: ignore[no-untyped-def]
    """Append the hashes of all n-grams of a word whose characters begin at `starts`."""
    for i in range(num_chars):
        value, j = FNV_SEED, np.int64(starts[i])
        for n in range(1, min(longest, num_chars - i) + 1):
            stop = np.int64(starts[i + n])
            while j < stop:
                value = fnv(value, word[j])
                j += 1
            which[count] = np.int64(value)
            count += (n >= shortest) & ((n > 1) | ((i > 0) & (i + 1 < num_chars)))
    return count


@inner
def to_buckets(which, first, stop, buckets):  # type: ignore[no-untyped-def]
    """Replace the hashes which[first:stop], of 32 bits, by their remainders of a division by
    `buckets`, which may have 31."""
    # A product in place of a division. The factor is too large, so that the quotient of a multiple
    # is not too small; by so little that no other quotient of 32 bits comes to the next whole
    # number.
    per_bucket = (1.0 / buckets) * (1.0 + 2.0**-51)
    for i in range(first, stop):
        which[i] -= np.int64(np.float64(which[i]) * per_bucket) * buckets


@inner
def find_rows(word, size, sizes, bits, firsts, starts, which, count):  # type: ignore[no-untyped-def]
    """Append the rows of all n-grams of word[:size], with `<` and `>` around it; returns how many
    there are now.

    sizes: shortest and longest n-gram, buckets, rows of words before those of n-grams, whether some
    n-grams were pruned. bits, firsts: `FastTextModel.grams`. `starts` has room for each byte and
    one more, `which` for all n-grams and one more, `word` for an n-gram behind it.
    """
    shortest, longest, buckets, num_words, pruned = sizes
    first, num_chars = count, np.int64(0)
    for i in range(size):
        starts[num_chars] = i
        num_chars += word[i] & 0xC0 != 0x80
    starts[num_chars] = size
    if num_chars == size:
        count = _hash_letters(word, size, shortest, longest, which, count)
    else:
        count = _hash_characters(word, starts, num_chars, shortest, longest, which, count)
    to_buckets(which, first, count, buckets)
    if pruned:
        last, count = count, first
        for i in range(first, last):
            place = which[i]
            # Most n-grams were pruned; their bits fit a near cache. Which survived nobody can
            # foresee, so each is written, and counted if it did.
            which[count] = place
            count += survived(bits, place)
        for i in range(first, count):
            which[i] = survivors_before(bits, firsts, which[i])
    for i in range(first, count):
        which[i] += num_words
    return count

"""Which rows of a fastText model's matrix does a word have? Its own, and those of its character n-grams.

The hashes and tables of fastText 0.9 (src/dictionary.cc), for the kernels that apply such models. Words are bytes; those of the
model lie one after another with eight bytes of padding behind the last. Helpers that take arrays are called per word, never per
n-gram: Numba counts their references at each call, even of those that are inlined.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.interning import load_word

FNV_SEED, _FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)
_LABEL = np.frombuffer(b"__label__", np.uint8)


_inline = njit(nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_inline
def fnv(value, byte):  # type: ignore[no-untyped-def]
    """FNV-1a of one more byte."""
    # fastText hashes signed bytes: those from 0x80 on set the upper bits too. Numba widens what is not cast at every step.
    wide = np.uint32(byte) | (np.uint32(0xFFFFFF00) if byte >= 0x80 else np.uint32(0))
    return np.uint32(np.uint32(value ^ wide) * _FNV_PRIME)


@njit(cache=True, nogil=True)
def fill_slots(word_bytes, word_ends, slots):  # type: ignore[no-untyped-def]
    """Numbers of words by hash with linear probing; the slots, a power of two and more than there are words, are -1 before."""
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


@_inline
def find_word(buf, start, stop, value, slots, word_bytes, word_ends):  # type: ignore[no-untyped-def]
    """Number of the word buf[start:stop], whose hash is `value`; -1 where the model has none."""
    mask = slots.size - 1
    slot = np.int64(value) & mask
    while slots[slot] >= 0:
        number = np.int64(slots[slot])
        first = word_ends[number - 1] if number else np.int64(0)
        if word_ends[number] - first == stop - start:
            pos = start
            while pos + 8 <= stop and load_word(buf, pos) == load_word(word_bytes, first + pos - start):
                pos += 8
            if pos < stop and stop - pos < 8 and pos + 8 <= buf.size:  # what lies behind the words is shifted out of both
                different = load_word(buf, pos) ^ load_word(word_bytes, first + pos - start)
                pos = stop if different << np.uint64(8 * (8 - (stop - pos))) == np.uint64(0) else pos
            else:
                while pos < stop and buf[pos] == word_bytes[first + pos - start]:
                    pos += 1
            if pos == stop:
                return number
        slot = (slot + 1) & mask
    return np.int64(-1)


@inner
def is_label(buf, start, stop):  # type: ignore[no-untyped-def]
    """Whether fastText takes a word that the model lacks for a label of the text, and does not read it."""
    if stop - start < _LABEL.size:
        return False
    alike = 0
    for i in range(_LABEL.size):
        alike += buf[start + i] == _LABEL[i]
    return alike == _LABEL.size


@inner
def find_rows(word, size, lengths, there, places, num_words, which, count):  # type: ignore[no-untyped-def]
    """Append the rows of all n-grams of word[:size], with `<` and `>` around it; returns how many there are now."""
    # A product and a correction, exact for 32 bits, in place of a division per n-gram.
    buckets, per_bucket = lengths[2], 1.0 / lengths[2]
    first, all_survived = count, there.size == 0
    for i in range(size):
        if word[i] & 0xC0 == 0x80:
            continue
        value, j = FNV_SEED, i
        for n in range(1, lengths[1] + 1):
            if j >= size:
                break
            value = fnv(value, word[j])
            j += 1
            while j < size and word[j] & 0xC0 == 0x80:
                value = fnv(value, word[j])
                j += 1
            if n >= lengths[0] and not (n == 1 and (i == 0 or j == size)):
                place = np.int64(value) - np.int64(np.float64(value) * per_bucket) * buckets
                if place < 0:
                    place += buckets
                elif place >= buckets:
                    place -= buckets
                # Most n-grams were pruned; their bits fit a near cache, their rows do not. Which survived nobody can foresee, so
                # each is written, and counted if it did.
                which[count] = place
                count += 1 if all_survived else np.int64(there[place >> 3] >> (place & 7) & 1)
    for i in range(first, count):
        which[i] = num_words + (which[i] if all_survived else np.int64(places[which[i]]))
    return count

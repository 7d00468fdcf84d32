"""Which units of a document are equal, and what do they say of it?

A unit of up to 15 bytes is two numbers: its first eight bytes, and the rest with its length. The second, multiplied, is added to
the first without carries for its key, so equal keys and equal second numbers mean equal units and no byte is compared. What
depends on a unit alone is measured once for all its copies.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.bitmaps import IS_UNSEGMENTED, LETTERS, TAILS, bits_from, class_at, count_ones
from tasks.kernels.interning import HALF, ID_BITS, first_slot, load_word, mixed_words, same_bytes, table_mask

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_ALL, _ONE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(1)
_LENGTH = np.uint64(56)
_LONG = np.uint64(0xFF << 56)
_LONG_BYTES = 16


@njit(nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def unit_key(buf, start, stop):  # type: ignore[no-untyped-def]
    """(key, rest) of buf[start:stop]; with a rest of _LONG, spans of equal keys may differ. Reads 16 bytes."""
    length = stop - start
    if length < _LONG_BYTES:
        behind = length - 8 if length > 8 else 0
        within = length if length < 8 else 8
        first = load_word(buf, start) & (_ALL >> np.uint64(64 - 8 * within))
        rest = load_word(buf, start + 8) & ((_ONE << np.uint64(8 * behind)) - _ONE)
        rest |= np.uint64(length) << _LENGTH
        return first ^ (rest * _PRIME), rest
    return mixed_words(buf, start, stop, _PRIME ^ np.uint64(length), _PRIME), _LONG


@inner
def number_units(buf, begin, maps, flags, num_units, places, spans, units, chars_of, table, generation):  # type: ignore[no-untyped-def]
    """Number the units that start and stop at `places`.

    Fills spans: starts, stops, keys and rests by id; units: ids, characters in the units before each (one entry more than units)
    and counts by id; chars_of: characters by id. `generation` is that of the last use of the table.
    Returns the generation used, the number of distinct units, and the counts (unsegmented and alphabetic units, characters
    of segmented units and of the longest).
    """
    unit_starts, unit_stops = places
    starts, stops, keys, rests = spans
    ids, char_sums, counts = units
    generation += 1
    mask, num_ids = table_mask(num_units), np.int64(0)
    for i in range(num_units):
        start, stop = unit_starts[i], unit_stops[i]
        key, rest = unit_key(buf, start, stop)
        slot = first_slot(key, mask)
        # Whether a unit is new nobody can foresee: both cases take the same way, and a known unit is written over itself.
        while True:
            tag = table[2 * slot + 1]
            fresh = tag >> HALF != np.uint64(generation)
            known = np.int64(tag & ID_BITS)
            if fresh | ((table[2 * slot] == key) & (rests[known] == rest)):
                if rest != _LONG or fresh:
                    break
                if stops[known] - starts[known] == stop - start and same_bytes(buf, starts[known], start, stop - start):
                    break
            slot = (slot + 1) & mask
        found = num_ids if fresh else known
        table[2 * slot] = key
        table[2 * slot + 1] = (np.uint64(generation) << HALF) | np.uint64(found)
        starts[num_ids], stops[num_ids], keys[num_ids], rests[num_ids] = start, stop, key, rest
        counts[found] = 1 if fresh else counts[found] + 1
        ids[i] = found
        num_ids += fresh

    unsegmented, alphabetic, word_chars, longest = 0, 0, 0, 0
    for unit in range(num_ids):
        start, stop, count = starts[unit], stops[unit], np.int64(counts[unit])
        chars, has_letter = stop - start, False
        pos = start
        while pos < stop:
            within = _ALL if stop - pos >= 64 else (_ONE << np.uint64(stop - pos)) - _ONE
            chars -= count_ones(bits_from(maps, TAILS, pos - begin) & within)
            has_letter |= bits_from(maps, LETTERS, pos - begin) & within != 0
            pos += 64
        is_single = buf[start] >= 0x80 and class_at(buf, start, stop, flags) & IS_UNSEGMENTED != 0
        unsegmented += count * is_single
        alphabetic += count * (is_single | has_letter)
        word_chars += count * chars * (not is_single)
        longest = chars if chars > longest else longest
        chars_of[unit] = chars
    sum_before = 0
    char_sums[0] = 0
    for i in range(num_units):
        sum_before += chars_of[ids[i]]
        char_sums[i + 1] = sum_before
    return generation, num_ids, unsegmented, alphabetic, word_chars, longest

"""Finds equal units of a document, and measures each once.

A unit of up to 15 bytes is two numbers: its first eight bytes, and the rest with its length. The
second, multiplied, is added to the first without carries for its key, so equal keys and equal
second numbers mean equal units and no byte is compared. What depends on a unit alone is measured
once for all its copies.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inlined, inner
from tasks.kernels.text.addresses import load_word
from tasks.kernels.text.bitmaps import (
    IS_UNSEGMENTED,
    LETTERS,
    TAILS,
    bits_from,
    class_at,
    count_ones,
)
from tasks.kernels.text.interning import clear_table, first_slot, known_id, mixed_words, same_bytes

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_ALL, _ONE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(1)
_LENGTH = np.uint64(56)
_LONG = np.uint64(0xFF << 56)
_LONG_BYTES = 16


@inlined
def unit_key(buf, start, stop):  # type: ignore[no-untyped-def]
    """(key, rest) of buf[start:stop]; with a rest of _LONG, spans of equal keys may differ. Reads
    16 bytes."""
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
def number_units(buf, begin, maps, flags, num_units, places, spans, units, chars_of, table):  # type: ignore[no-untyped-def]
    """Number the units that start and stop at `places`.

    Fills spans: starts, stops, keys and rests by id; units: ids, characters in the units before
    each (one entry more than units) and counts by id; chars_of: characters by id. Returns the
    number of distinct units, and the counts (unsegmented and alphabetic units, characters of
    segmented units and of the longest).
    """
    unit_starts, unit_stops = places
    starts, stops, keys, rests = spans
    ids, char_sums, counts = units
    mask, num_ids = clear_table(table, num_units), np.int64(0)
    for i in range(num_units):
        start, stop = unit_starts[i], unit_stops[i]
        key, rest = unit_key(buf, start, stop)
        slot = first_slot(key, mask)
        # Written before it is known to be new: an empty slot reads as this id, and ends the search.
        starts[num_ids], stops[num_ids] = start, stop
        keys[num_ids], rests[num_ids], counts[num_ids] = key, rest, 0
        while True:
            found = known_id(table, slot, num_ids)
            if (keys[found] ^ key) | (rests[found] ^ rest) == 0:
                if rest != _LONG or found == num_ids:
                    break
                if stops[found] - starts[found] == stop - start and same_bytes(
                    buf, starts[found], start, stop - start
                ):
                    break
            slot = (slot + 1) & mask
        table[slot] = found
        counts[found] += 1
        ids[i] = found
        num_ids += found == num_ids

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
    return num_ids, unsegmented, alphabetic, word_chars, longest

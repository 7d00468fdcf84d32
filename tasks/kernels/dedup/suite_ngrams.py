"""Finds n-grams of evaluation items in documents: one walk over each, a table of hashes, and a
proof by the text.

Units are those of `tasks.kernels.text.chars`, folded, so case, punctuation and white space do not
matter. The hash of an n-gram is a polynomial in its unit hashes modulo 2^64, taken from prefix
sums, mixed with its length: each length costs one multiplication and one look-up per unit. Hashes
of all suites lie sorted in one array; `starts` says where those with given leading bits begin, with
four times as many places as hashes, so most look-ups end at an empty place. What is found is
compared with the item's own text, unit by unit: an equal hash alone is not a hit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.dedup.shingles import unit_hashes
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.chars import decode, document_units, mix64, next_unit

BASE = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def prefix_sums(units, count, out):  # type: ignore[no-untyped-def]
    """out[k]: polynomial of the first k unit hashes; `out` has room for one more than units."""
    out[0] = 0
    for k in range(count):
        out[k + 1] = out[k] * BASE + units[k]


@njit(cache=True, nogil=True)
def base_powers(most):  # type: ignore[no-untyped-def]
    powers = np.ones(most + 1, np.uint64)
    for k in range(most):
        powers[k + 1] = powers[k] * BASE
    return powers


@njit(cache=True, nogil=True)
def ngram_hash(sums, powers, first, length):  # type: ignore[no-untyped-def]
    """The hash of units first … first + length - 1."""
    return mix64(
        sums[first + length]
        - sums[first] * powers[length]
        + np.uint64(length) * np.uint64(0xD1B54A32D192ED03)
    )


@njit(cache=True, nogil=True)
def text_ngrams(buf, length_units, min_units, classes, folds):  # type: ignore[no-untyped-def]
    """(hashes, units of each, byte starts, byte stops) of a text's n-grams: one of the whole text
    where it has fewer units, and none where it has fewer than `min_units`."""
    starts, stops = np.empty(buf.size + 1, np.int64), np.empty(buf.size + 1, np.int64)
    units = np.empty(buf.size + 1, np.uint64)
    count = document_units(buf, 0, buf.size, classes, folds, starts, stops, units)
    length = min(count, length_units)
    num = count - length + 1 if length >= min_units else 0
    sums = np.empty(count + 1, np.uint64)
    prefix_sums(units, count, sums)
    powers = base_powers(length_units)
    hashes = np.empty(num, np.uint64)
    for i in range(num):
        hashes[i] = ngram_hash(sums, powers, i, length)
    last = max(length - 1, 0)
    return hashes, length, starts[:num].copy(), stops[last : last + num].copy()


@njit(cache=True, nogil=True)
def find_ngrams(buf, begins, lengths, hashes, starts, shift, classes, folds):  # type: ignore[no-untyped-def]
    """document, first unit, place in `hashes`, one after another, for every n-gram of every
    document that has an equal hash."""
    longest = 0
    for i in range(begins.size - 1):
        longest = max(longest, begins[i + 1] - begins[i])
    units, sums = np.empty(longest + 1, np.uint64), np.empty(longest + 2, np.uint64)
    powers = base_powers(lengths[-1])
    found, num_found = np.empty(3 * 1024, np.int64), 0
    for row in range(begins.size - 1):
        count = unit_hashes(buf, begins[row], begins[row + 1], classes, folds, units)
        prefix_sums(units, count, sums)
        for k in range(lengths.size):
            for first in range(count - lengths[k] + 1):
                value = ngram_hash(sums, powers, first, lengths[k])
                bucket = np.int64(value >> shift)
                place, stop = starts[bucket], starts[bucket + 1]
                while place < stop and hashes[place] < value:
                    place += 1
                if place < stop and hashes[place] == value:
                    if num_found == found.size:
                        more = np.empty(2 * num_found, np.int64)
                        for i in range(num_found):
                            more[i] = found[i]
                        found = more
                    found[num_found], found[num_found + 1], found[num_found + 2] = row, first, place
                    num_found += 3
    return found[:num_found]


@njit(cache=True, nogil=True)
def prove_ngrams(  # type: ignore[no-untyped-def]
    buf, begin, end, firsts, places, text, text_starts, text_stops, lengths, classes, folds, spans
):
    """Write (byte start, byte stop) in the document buf[begin:end] of each n-gram, flat; (-1, -1)
    where the texts differ."""
    starts, stops = np.empty(end - begin + 1, np.int64), np.empty(end - begin + 1, np.int64)
    units = np.empty(end - begin + 1, np.uint64)
    document_units(buf, begin, end, classes, folds, starts, stops, units)
    spelling = pointers((buf, text, classes, folds))
    for i in range(firsts.size):
        first, place = firsts[i], places[i]
        start, stop = starts[first], stops[first + lengths[place] - 1]
        same = _same_units(start, stop, text_starts[place], text_stops[place], *spelling)
        spans[2 * i], spans[2 * i + 1] = (start - begin, stop - begin) if same else (-1, -1)


@inner
def _same_units(a_pos, a_end, b_pos, b_end, a, b, classes, folds):  # type: ignore[no-untyped-def]
    while True:
        a_start, a_stop, _ = next_unit(a, a_pos, a_end, classes, folds)
        b_start, b_stop, _ = next_unit(b, b_pos, b_end, classes, folds)
        if a_start == a_end or b_start == b_end:
            return a_start == a_end and b_start == b_end
        i, j = a_start, b_start
        while i < a_stop and j < b_stop:
            x, i = decode(a, i, a_stop)
            y, j = decode(b, j, b_stop)
            if folds[x] != folds[y]:
                return False
        if i < a_stop or j < b_stop:
            return False
        a_pos, b_pos = a_stop, b_stop

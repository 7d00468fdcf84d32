"""Remembers keys in a Bloom filter (Bloom 1970): a bound on memory for a bound on errors.

m bits for n keys and k probes err with probability (1 - e^(-kn/m))^k, least at k = m/n ln 2, which
gives m = n log2(1/error) / ln 2. Probes are h1 + i h2 modulo m (Kirsch, Mitzenmacher 2006) of a
key's two 64-bit words. A key that occurred is always found.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, uint64


def make_filter(num_keys: int, error: float) -> tuple[np.ndarray, int]:
    """An empty filter, as words of 64 bits, that errs with at most this probability until it has so
    many keys; its probes."""
    num_hashes = max(1, math.ceil(math.log2(1 / error)))
    # A tenth more than theory: probes by two hashes are not quite independent.
    num_bits = 1024 + math.ceil(1.1 * max(num_keys, 1) * num_hashes / math.log(2))
    return np.zeros(-(-num_bits // 64), np.uint64), num_hashes


def expected_errors(num_bits: int, num_hashes: int, first: int, last: int) -> float:
    """How many of the keys first .. last that are added to a filter, all different, seem to have
    been there already."""
    filled = np.linspace(first, last, 1001)
    return float(np.trapezoid((-np.expm1(-num_hashes * filled / num_bits)) ** num_hashes, filled))


@njit(cache=True, nogil=True)
def add_all(bits, num_hashes, keys):  # type: ignore[no-untyped-def]
    """Add keys (two uint64 words each) in order; which of them seem to have been there already."""
    size = uint64(bits.size * 64)
    there = np.empty(len(keys), np.bool_)
    for i in range(len(keys)):
        probe, step = uint64(keys[i, 0]), uint64(keys[i, 1] | uint64(1))
        every = True
        for _ in range(num_hashes):
            place = probe % size
            word, bit = place >> uint64(6), uint64(1) << (place & uint64(63))
            every = every and (bits[word] & bit) != 0
            bits[word] |= bit
            probe = uint64(probe + step)
        there[i] = every
    return there

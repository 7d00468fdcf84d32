"""Orders sequences by keys, without shuffle, memory or state.

`hash_ids` gives every document id a number keyed by a seed: sorting by it shuffles, and the place
of a document depends on nothing but its id. `permute` is a keyed bijection of [0, size), evaluated
at any index on its own; so is `draw`, which draws with replacement.
"""

from __future__ import annotations

import hashlib

import numpy as np

NUM_ROUNDS = 6


def permute(index: np.ndarray, size: int, key: str) -> np.ndarray:
    """Where a keyed bijection of [0, size) sends each index.

    A Feistel network permutes the smallest power of four that covers the range; a result outside
    the range is sent through again until it falls inside (cycle walking, Black and Rogaway 2002),
    so that the range maps onto itself. At most a factor of four too large, so four passes in the
    mean.
    """
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half_bits)) - 1)
    keys = np.frombuffer(
        hashlib.blake2b(key.encode(), digest_size=8 * NUM_ROUNDS).digest(), "<u8"
    ).astype(np.uint64)

    out = np.asarray(index).astype(np.uint64)
    outside = np.ones(out.shape, bool)
    while outside.any():
        values = out[outside]
        left, right = values >> half_bits, values & mask
        for round_key in keys:
            left, right = right, left ^ (mix(right ^ round_key) & mask)
        out[outside] = (left << half_bits) | right
        outside = out >= np.uint64(size)
    return out.astype(np.int64)


def draw(index: np.ndarray, size: int, key: str) -> np.ndarray:
    """A number of [0, size) for each index, drawn with replacement. Bias below size / 2^64."""
    salt = np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8).digest(), "<u8").astype(
        np.uint64
    )
    return (mix(mix(np.asarray(index).astype(np.uint64) ^ salt)) % np.uint64(size)).astype(np.int64)


def hash_ids(ids: np.ndarray, seed: int) -> np.ndarray:
    """A uint64 for each id, an array of shape (documents, 16) of uint8."""
    key = np.frombuffer(
        hashlib.blake2b(f"order of documents {seed}".encode(), digest_size=8).digest(), "<u8"
    ).astype(np.uint64)
    words = np.ascontiguousarray(ids, np.uint8).view("<u8").astype(np.uint64)
    return mix(mix(words[:, 0] ^ key) ^ words[:, 1])


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele et al. 2014); arithmetic of uint64 arrays wraps."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

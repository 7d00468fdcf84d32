"""Finds pairs of signatures that agree on a whole band.

Locality-sensitive hashing by banding (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, ch.
3): a signature is cut into bands of `rows_per_band` places, and documents equal in a band share a
bucket. A pair of Jaccard similarity s meets with probability 1 - (1 - s^rows)^bands.

Documents are numbered by preference. The first `full_bucket` of a bucket give all their pairs,
every later one a pair with the very first, which would survive it: linear work whatever the bucket
holds. What a document pairs with depends on the documents before it alone, so what is added at the
end changes no earlier pair.

Cost per band and document: two looks at a bit map that fits in the cache; for documents that may
share a bucket also one at a hash table. No bucket is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numba import int64, njit, uint64

from tasks.kernels.text.chars import mix64

_MOST_EDGES = 1 << 25
"""Edges that are collected before doubles are taken out: 256 MB."""


def collision_probability(similarity: float, num_bands: int, rows_per_band: int) -> float:
    """Chance that a pair of this Jaccard similarity shares a bucket in some band."""
    return 1.0 - (1.0 - similarity**rows_per_band) ** num_bands


def band_table(signatures: np.ndarray, bandings: Sequence[tuple[int, int]]) -> np.ndarray:
    """Keys of the bands of each (bands, rows per band), one banding after another: uint64[all
    bands, documents]."""
    table = np.empty((sum(bands for bands, _ in bandings), len(signatures)), np.uint64)
    at = 0
    for bands, rows in bandings:
        for band in range(bands):
            _band_keys(signatures, band * rows, rows, table[at])
            at += 1
    return table


def candidate_pairs(
    bands: Iterable[np.ndarray], full_bucket: int, num_earlier: int = 0
) -> np.ndarray:
    """Distinct pairs that share a bucket in one of the bands, as sorted uint64 `(smaller row << 32)
    | larger row`.

    bands: for each band the keys of all documents. num_earlier: so many first documents give no
    pairs among themselves.
    """
    found: list[np.ndarray] = []
    for keys in bands:
        found.append(_bucket_pairs(keys, rows_that_may_share(keys), full_bucket, num_earlier))
        if sum(len(edges) for edges in found) > _MOST_EDGES:
            found = [_distinct(found)]
    return _distinct(found)


def _distinct(found: list[np.ndarray]) -> np.ndarray:
    pairs = np.concatenate([np.zeros(0, np.uint64), *found])
    pairs.sort()
    return pairs[np.r_[True, pairs[1:] != pairs[:-1]][: len(pairs)]]


def rows_that_may_share(keys: np.ndarray) -> np.ndarray:
    """Rows whose key may occur twice, ascending: all that do, and a few more."""
    # Eight to sixteen places a key: one in about ten is taken for another.
    bits = max(16, min(33, int(len(keys) * 8).bit_length()))
    once, twice = np.zeros(1 << (bits - 6), np.uint64), np.zeros(1 << (bits - 6), np.uint64)
    return _shared_rows(keys, once, twice, bits)


@njit(cache=True, nogil=True)
def _band_keys(signatures, first, rows, keys):  # type: ignore[no-untyped-def]
    """64-bit hash of places first .. first + rows of each signature; their order counts."""
    for i in range(len(signatures)):
        h = uint64(0x9E3779B97F4A7C15)
        for k in range(first, first + rows):
            h = uint64(uint64(h ^ uint64(signatures[i, k])) * uint64(0xFF51AFD7ED558CCD))
            h = uint64(h ^ uint64(h >> uint64(32)))
        keys[i] = h


@njit(cache=True, nogil=True)
def _shared_rows(keys, once, twice, bits):  # type: ignore[no-untyped-def]
    drop = uint64(64 - bits)
    for key in keys:
        place = mix64(key) >> drop
        word, bit = place >> uint64(6), uint64(1) << (place & uint64(63))
        twice[word] |= once[word] & bit
        once[word] |= bit
    count = 0
    for key in keys:
        place = mix64(key) >> drop
        count += int64((twice[place >> uint64(6)] >> (place & uint64(63))) & uint64(1))
    rows = np.empty(count, np.int64)
    at = 0
    for i in range(keys.size):
        place = mix64(keys[i]) >> drop
        if (twice[place >> uint64(6)] >> (place & uint64(63))) & uint64(1):
            rows[at] = i
            at += 1
    return rows


@njit(cache=True, nogil=True)
def _bucket_pairs(keys, rows, full_bucket, num_earlier):  # type: ignore[no-untyped-def]
    """Pairs among `rows`. A bucket is a chain of its first documents, found through a table of
    heads."""
    size = 16
    while size < 2 * rows.size:
        size *= 2
    mask = uint64(size - 1)
    heads = np.full(size, -1, np.int32)  # place in rows of the first document of a bucket
    following = np.full(rows.size, -1, np.int32)
    last = np.empty(rows.size, np.int32)  # of heads: the end of their chain, and its length
    length = np.empty(rows.size, np.int32)
    pairs = np.empty(max(rows.size, 16), np.uint64)
    count = 0
    for i in range(rows.size):
        key = keys[rows[i]]
        slot = mix64(key) & mask
        while heads[slot] >= 0 and keys[rows[heads[slot]]] != key:
            slot = (slot + uint64(1)) & mask
        head = heads[slot]
        if head < 0:
            heads[slot], last[i], length[i] = i, i, 1
            continue
        if pairs.size - count < full_bucket:
            larger = np.empty(2 * pairs.size + full_bucket, np.uint64)
            larger[:count] = pairs[:count]
            pairs = larger
        full = length[head] >= full_bucket
        if rows[i] >= num_earlier:
            other = head
            while other >= 0:
                pairs[count] = (uint64(rows[other]) << uint64(32)) | uint64(rows[i])
                count += 1
                other = -1 if full else following[other]
        if not full:
            following[last[head]] = i
            last[head] = i
            length[head] += 1
    return pairs[:count].copy()

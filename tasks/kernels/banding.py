"""Which pairs of signatures are worth a look? Those that agree on a whole band.

Locality-sensitive hashing by banding (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, ch. 3): a
signature is cut into bands of `rows_per_band` places, and documents equal in a band share a bucket. A pair of
Jaccard similarity s meets with probability 1 - (1 - s^rows)^bands.

Buckets come from sorting (band key, document); no table of buckets is kept. A bucket of up to `full_bucket` documents gives all
its pairs. A larger one gives star edges only, from its first document to each other: linear work whatever the bucket holds.
Documents are numbered by preference, so the centre of a star is the document that would survive.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64


def collision_probability(similarity: float, num_bands: int, rows_per_band: int) -> float:
    """Chance that a pair of this Jaccard similarity shares a bucket in some band."""
    return 1.0 - (1.0 - similarity**rows_per_band) ** num_bands


def candidate_pairs(signatures: np.ndarray, num_bands: int, rows_per_band: int, full_bucket: int) -> np.ndarray:
    """Distinct pairs that share a bucket, as sorted uint64 `(smaller row << 32) | larger row`."""
    found = np.zeros(0, np.uint64)
    for band in range(num_bands):
        keys = band_keys(signatures, band * rows_per_band, rows_per_band)
        order = np.argsort(keys, kind="stable").astype(np.uint64)  # stable: rows ascend within a bucket
        starts = np.flatnonzero(np.r_[True, keys[order][1:] != keys[order][:-1], True][: len(keys) + 1])
        sizes = np.diff(starts)
        shared = sizes > 1
        edges = _bucket_pairs(order, starts[:-1][shared], sizes[shared], full_bucket)
        found = np.union1d(found, edges)  # band by band, so that memory follows distinct pairs
    return found


@njit(cache=True, nogil=True)
def band_keys(signatures, first, rows):  # type: ignore[no-untyped-def]
    """64-bit hash of places first .. first + rows of each signature; their order counts."""
    keys = np.empty(len(signatures), np.uint64)
    for i in range(len(signatures)):
        h = uint64(0x9E3779B97F4A7C15)
        for k in range(first, first + rows):
            h = uint64(uint64(h ^ uint64(signatures[i, k])) * uint64(0xFF51AFD7ED558CCD))
            h = uint64(h ^ uint64(h >> uint64(32)))
        keys[i] = h
    return keys


@njit(cache=True, nogil=True)
def _bucket_pairs(order, starts, sizes, full_bucket):  # type: ignore[no-untyped-def]
    count = 0
    for size in sizes:
        count += size * (size - 1) // 2 if size <= full_bucket else size - 1
    pairs = np.empty(count, np.uint64)
    at = 0
    for start, size in zip(starts, sizes):  # noqa: B905 (numba's zip has no strict)
        centres = size - 1 if size <= full_bucket else 1
        for i in range(start, start + centres):
            for j in range(i + 1, start + size):
                pairs[at] = uint64(uint64(order[i] << uint64(32)) | order[j])
                at += 1
    return pairs

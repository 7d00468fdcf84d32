"""Finds near duplicates, their survivors and their families: the global half of
`tasks.dedup.stage`.

Documents are numbered by preference (0 is the survivor of any cluster it is in) and known by their
sketches: band keys, signatures, shingle sets. Steps: candidates by banding, a signature estimate
that spares hopeless pairs the exact comparison, exact Jaccard similarity of the rest, then
survivors. The first documents may be decided already, by an earlier run: they are compared with
later ones, never among themselves.

Cost: a band of keys at a time; memory for that, the candidate pairs and, on disk, the shingle sets
of documents in candidate pairs. LSH finds pairs with the probability that `collision_probability`
gives; what it finds is exact. Left out: pairs whose estimate lies three standard errors below
`family_threshold` (about one true pair in 700 at that threshold, none near `threshold`), and
containment (a short text inside a long one has a low Jaccard similarity).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

GetSets = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Rows → (sorted, distinct uint32 shingle hashes of each row one after another, offsets, one more
than rows)."""

Banding = tuple[int, int]
"""Number of bands, rows per band."""

_PAIRS_AT_ONCE = 1 << 19
"""Pairs whose signatures are in memory together: up to 0.5 GB."""


@dataclass(frozen=True)
class Sketches:
    """What is known of documents in order of preference.

    band_keys: number of a band, counted over all bandings → its keys, uint64[documents].
    signatures: rows → uint32[rows, num_perms]. shingle_sets: see `GetSets`.
    """

    num_documents: int
    num_perms: int
    bandings: Sequence[Banding]
    band_keys: Callable[[int], np.ndarray]
    signatures: Callable[[np.ndarray], np.ndarray]
    shingle_sets: GetSets


@dataclass(frozen=True)
class NearDuplicates:
    """survivor: for each row, the row it is a verified near duplicate of, or itself. a, b, jaccard:
    pairs of rows, a < b, whose exact similarity is at least `family_threshold`, sorted.
    num_candidates: distinct pairs of each banding. num_compared: pairs whose exact similarity was
    computed for all of them.
    """

    survivor: np.ndarray
    a: np.ndarray
    b: np.ndarray
    jaccard: np.ndarray
    num_candidates: tuple[int, ...]
    num_compared: int


def find_near_duplicates(
    sketches: Sketches,
    threshold: float,
    family_threshold: float,
    full_bucket: int,
    decided: np.ndarray | None = None,
) -> NearDuplicates:
    """Verified pairs and survivors. `decided`: the survivors of so many first documents, if an
    earlier run chose them."""
    decided = np.zeros(0, np.int64) if decided is None else decided
    pairs, num_candidates = propose_pairs(sketches, full_bucket, len(decided))
    pairs = likely_pairs(pairs, sketches, family_threshold)
    return verify_pairs(pairs, sketches, threshold, family_threshold, decided, num_candidates)


def propose_pairs(
    sketches: Sketches, full_bucket: int, num_earlier: int
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Distinct candidates of all bandings, packed, and how many each banding gave."""
    from tasks.kernels.dedup.banding import candidate_pairs

    found, first = [], 0
    for num_bands, _ in sketches.bandings:
        bands = (sketches.band_keys(band) for band in range(first, first + num_bands))
        found.append(candidate_pairs(bands, full_bucket, num_earlier))
        first += num_bands
    return np.unique(np.concatenate(found)), tuple(map(len, found))


def likely_pairs(pairs: np.ndarray, sketches: Sketches, family_threshold: float) -> np.ndarray:
    """The pairs whose signatures do not rule out, by three standard errors, that they are
    family."""
    from tasks.kernels.dedup.minhash import count_equal

    variance = family_threshold * (1 - family_threshold) / sketches.num_perms
    hopeless = family_threshold - 3 * math.sqrt(variance)
    # Signatures of a block of pairs at a time: each is read once for all its pairs in the block.
    likely = np.empty(len(pairs), bool)
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        a, b = _unpack(pairs[start : start + _PAIRS_AT_ONCE])
        rows = np.unique(np.concatenate([a, b]))
        places = np.searchsorted(rows, a), np.searchsorted(rows, b)
        equal = count_equal(sketches.signatures(rows), *places)
        likely[start : start + len(a)] = equal >= hopeless * sketches.num_perms
    return pairs[likely]


def verify_pairs(
    pairs: np.ndarray,
    sketches: Sketches,
    threshold: float,
    family_threshold: float,
    decided: np.ndarray,
    num_candidates: tuple[int, ...],
) -> NearDuplicates:
    """Exact similarities of packed pairs, and the survivors they make."""
    from tasks.kernels.dedup.overlap import choose_survivors, jaccard_of_pairs

    a, b = _unpack(pairs)
    # From here on documents are numbered among those in candidate pairs, in the same order.
    rows = np.unique(np.concatenate([a, b]))
    # The survivor of an earlier document is compared, though it may be in no pair itself.
    rows = np.union1d(rows, decided[rows[rows < len(decided)]])
    a, b = np.searchsorted(rows, a), np.searchsorted(rows, b)
    shingles, begins = sketches.shingle_sets(rows)
    jaccard = jaccard_of_pairs(shingles, begins, a, b, family_threshold)
    related = jaccard >= family_threshold
    a, b, jaccard = a[related], b[related], jaccard[related]
    by_member = np.lexsort((a, b))
    before = np.arange(len(rows))
    earlier = rows < len(decided)
    before[earlier] = np.searchsorted(rows, decided[rows[earlier]])
    chosen, similarity = choose_survivors(
        shingles, begins, a[by_member], b[by_member], jaccard[by_member], threshold, before
    )

    # A removal found through a neighbour is evidence too, though banding had not proposed the pair.
    removed = np.flatnonzero((chosen != np.arange(chosen.size)) & ~earlier)
    a, b = np.concatenate([a, chosen[removed]]), np.concatenate([b, removed])
    jaccard = np.concatenate([jaccard, similarity[removed]])
    # A packed pair sorts by a, then by b.
    _, first = np.unique(_pack(a, b), return_index=True)

    survivor = np.arange(sketches.num_documents)
    survivor[: len(decided)] = decided
    survivor[rows] = rows[chosen]
    return NearDuplicates(
        survivor, rows[a[first]], rows[b[first]], jaccard[first], num_candidates, len(pairs)
    )


def _pack(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.uint64) << np.uint64(32)) | b.astype(np.uint64)


def _unpack(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low = pairs & np.uint64(0xFFFFFFFF)
    return (pairs >> np.uint64(32)).astype(np.int64), low.astype(np.int64)

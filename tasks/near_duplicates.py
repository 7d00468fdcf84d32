"""Which documents are near duplicates of which, who survives, and who is family? The global half of `tasks.dedup`.

Input is a matrix of signatures whose rows are in order of preference (row 0 is the survivor of any cluster it is in) and a
way to get exact shingle sets. Steps: candidates by banding, a signature estimate that spares hopeless pairs the
exact comparison, exact Jaccard similarity of the rest, then survivors and families.

Cost: sorting one 64-bit key per document and band; memory for the signatures, the candidate pairs and, on disk, the shingle sets
of documents in candidate pairs. LSH finds pairs with the probability that `collision_probability` gives; what it finds is
exact. Left out: pairs whose estimate lies three standard errors below `family_threshold` (about one true pair in 700 at that
threshold, none near `threshold`), and containment (a short text inside a long one has a low Jaccard similarity).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

GetSets = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Rows → (sorted, distinct shingle hashes of each row one after another, offsets, one more than rows)."""

Banding = tuple[int, int]
"""Number of bands, rows per band."""


@dataclass(frozen=True)
class NearDuplicates:
    """survivor: for each row, the row it is a verified near duplicate of, or itself.
    a, b, jaccard: pairs of rows, a < b, whose exact similarity is at least `family_threshold`, sorted.
    num_candidates: distinct pairs of each banding. num_compared: pairs whose exact similarity was computed for all of them.
    """

    survivor: np.ndarray
    a: np.ndarray
    b: np.ndarray
    jaccard: np.ndarray
    num_candidates: tuple[int, ...]
    num_compared: int


def find_near_duplicates(
    signatures: np.ndarray,
    bandings: Sequence[Banding],
    threshold: float,
    family_threshold: float,
    full_bucket: int,
    get_sets: GetSets,
) -> NearDuplicates:
    """Verified pairs and survivors among documents whose signatures are rows in order of preference."""
    from tasks.kernels.banding import candidate_pairs
    from tasks.kernels.minhash import count_equal
    from tasks.kernels.overlap import choose_survivors, jaccard_of_pairs

    found = [candidate_pairs(signatures, *banding, full_bucket) for banding in bandings]
    a, b = _unpack(np.unique(np.concatenate(found)))

    num_perms = signatures.shape[1]
    hopeless = family_threshold - 3 * math.sqrt(family_threshold * (1 - family_threshold) / num_perms)
    likely = count_equal(signatures, a, b) >= hopeless * num_perms
    a, b = a[likely], b[likely]

    # From here on documents are numbered among those in candidate pairs; the order of preference stays.
    rows, places = np.unique(np.concatenate([a, b]), return_inverse=True)
    a, b = places[: a.size], places[a.size :]
    shingles, begins = get_sets(rows)
    jaccard = jaccard_of_pairs(shingles, begins, a, b, family_threshold)
    related = jaccard >= family_threshold
    a, b, jaccard = a[related], b[related], jaccard[related]
    by_member = np.lexsort((a, b))
    chosen, similarity = choose_survivors(shingles, begins, a[by_member], b[by_member], jaccard[by_member], threshold)

    # A removal found through a neighbour is evidence too, though banding had not proposed the pair.
    removed = np.flatnonzero(chosen != np.arange(chosen.size))
    a, b = np.concatenate([a, chosen[removed]]), np.concatenate([b, removed])
    jaccard = np.concatenate([jaccard, similarity[removed]])
    _, first = np.unique(_pack(a, b), return_index=True)

    survivor = np.arange(len(signatures))
    survivor[rows] = rows[chosen]
    return NearDuplicates(
        survivor, rows[a[first]], rows[b[first]], jaccard[first], tuple(len(f) for f in found), int(likely.sum())
    )


def _pack(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.uint64) << np.uint64(32)) | b.astype(np.uint64)


def _unpack(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (pairs >> np.uint64(32)).astype(np.int64), (pairs & np.uint64(0xFFFFFFFF)).astype(np.int64)

"""Assigns documents to clusters and families, by every kind of likeness, one after another.

Rows are numbered: those of the index first, then this run's documents, each in order of preference.
A document that shares its URL with a preferred one goes to it and is out, whatever its text. Of the
others, a document goes to the first with an equal text, and that one to the survivor it is a
verified near duplicate of (`tasks.dedup.near_duplicates`). So the survivor of a document is found
by three steps, each to a row that is not larger, and the first that moves it names the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.dedup.config import DedupConfig
from tasks.dedup.index import Index
from tasks.dedup.near_duplicates import GetSets, NearDuplicates, Sketches, find_near_duplicates
from tasks.dedup.signatures import choose_bands, gather_shingle_sets
from tasks.dedup.signed_documents import SignedDocuments, first_of_equal
from tasks.runtime.parts import Part, RunParts, scratch_dir

REASONS = (None, "SAME_URL", "EXACT_DUPLICATE", "NEAR_DUPLICATE", "NOTHING_LEFT")


@dataclass(frozen=True)
class Clusters:
    """One entry per row in every array; the first `num_earlier` rows are those of the index.

    by_url, by_text: where the first two steps take a row. survivor: where all three do. family: its
    smallest row. size: documents of this and earlier runs that go to a row. members: rows that were
    compared by shingles. a, b, jaccard: pairs of rows whose similarity is at least the family
    threshold, and whether b was removed because of a. metrics: what is told of the search.
    """

    num_earlier: int
    ids: pa.Array
    by_url: np.ndarray
    by_text: np.ndarray
    survivor: np.ndarray
    family: np.ndarray
    size: np.ndarray
    members: np.ndarray
    a: np.ndarray
    b: np.ndarray
    jaccard: np.ndarray
    removed: np.ndarray
    metrics: dict[str, Any]

    @property
    def reason(self) -> np.ndarray:
        """Numbers in REASONS, of this run's documents."""
        rows = np.arange(len(self.survivor))
        moved = [step != rows for step in (self.by_url, self.by_text, self.survivor)]
        return np.select(moved, (1, 2, 3), 0)[self.num_earlier :]


def cluster_documents(
    documents: SignedDocuments,
    index: Index,
    parts: Sequence[Part],
    config: DedupConfig,
    run_parts: RunParts,
    out_dir: Path,
) -> tuple[Clusters, GetSets]:
    """The clusters, and access to the shingle sets of members."""
    from tasks.kernels.dedup.overlap import smallest_connected

    num_earlier, num_rows = len(index), len(index) + len(documents)
    rows = np.arange(num_rows)
    by_url = _by_url(documents, index) if config.same_url else rows
    lost = by_url != rows
    # Only what no URL has decided is compared by text.
    words = np.concatenate([index.exact_key, documents.exact_key])
    by_text = first_of_equal(words, ~np.concatenate([index.blank, documents.blank]) & ~lost)
    num_shingles = np.concatenate([index.num_shingles, documents.num_shingles])
    members = np.flatnonzero((num_shingles > 0) & (by_text == rows) & ~lost)

    none = np.zeros(0, np.int64)
    near = NearDuplicates(np.arange(len(members)), none, none, np.zeros(0), (), 0)
    get_sets = _shingle_sets(documents, index, members, parts, config, run_parts, out_dir)
    metrics: dict[str, Any] = {"candidate_pairs": 0, "verified_pairs": 0}
    if config.method == "minhash":
        # Survivors of earlier members are members too, so each has a number among them.
        decided = np.searchsorted(members, index.survivor[index.members])
        near = find_near_duplicates(
            _sketches(documents, index, members, config, get_sets),
            config.threshold,
            config.family_threshold,
            config.full_bucket_documents,
            decided,
        )
        metrics = _search_metrics(near, config)

    chosen = rows.copy()
    chosen[members] = members[near.survivor]
    # Each step leads to a row that the next one may lead on from.
    survivor = chosen[by_text[by_url]]
    a, b = members[near.a], members[near.b]
    # A family holds whatever leads to its documents, and what is similar to them.
    joined = [(rows[:num_earlier], index.family), (rows, by_url), (rows, by_text), (a, b)]
    family = smallest_connected(num_rows, *map(np.concatenate, zip(*joined, strict=True)))
    size = np.bincount(survivor[num_earlier:], minlength=num_rows)
    # Copies in earlier runs count too, though they have no row.
    size[:num_earlier] += index.cluster_size
    ids = pa.concat_arrays([index.ids, documents.ids])
    pairs = (a, b, near.jaccard, chosen[b] == a)
    steps = (by_url, by_text, survivor)
    return Clusters(num_earlier, ids, *steps, family, size, members, *pairs, metrics), get_sets


def _by_url(documents: SignedDocuments, index: Index) -> np.ndarray:
    words = np.concatenate([index.url_key, documents.url_key])
    # URLs of the index come first, so a document of an earlier run owns its URL.
    owners = np.concatenate([index.url_row, len(index) + np.arange(len(documents))])
    valid = np.concatenate([np.ones(len(index.url_row), bool), documents.has_url])
    first = first_of_equal(words, valid)
    by_url = np.arange(len(index) + len(documents))
    by_url[len(index) :] = owners[first[len(index.url_row) :]]
    return by_url


def _sketches(
    documents: SignedDocuments,
    index: Index,
    members: np.ndarray,
    config: DedupConfig,
    get_sets: GetSets,
) -> Sketches:
    num_earlier = len(index.members)
    mine = members[num_earlier:] - len(index)
    places = documents.places_by_part(mine)

    def band_keys(band: int) -> np.ndarray:
        return np.concatenate([index.bands[band], documents.band_keys(mine, places, band)])

    def signatures(which: np.ndarray) -> np.ndarray:
        earlier = np.searchsorted(which, num_earlier)
        own = documents.signatures(mine[which[earlier:] - num_earlier], config.num_perms)
        return np.concatenate([index.signatures[which[:earlier]], own])

    return Sketches(
        len(members), config.num_perms, choose_bands(config), band_keys, signatures, get_sets
    )


def _shingle_sets(
    documents: SignedDocuments,
    index: Index,
    members: np.ndarray,
    parts: Sequence[Part],
    config: DedupConfig,
    run_parts: RunParts,
    out_dir: Path,
) -> GetSets:
    """Sets of members by their numbers, ascending. Where the index is kept all sets are made,
    once."""
    from tasks.kernels.dedup.overlap import take_sets

    num_earlier = len(index.members)
    mine = members[num_earlier:] - len(index)
    everything: list[tuple[np.ndarray, np.ndarray]] = []

    def gather(which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return gather_shingle_sets(documents, which, parts, config, run_parts, out_dir)

    def take(
        shingles: np.ndarray, begins: np.ndarray, which: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        sizes = (begins[1:] - begins[:-1])[which]
        taken = np.empty(int(sizes.sum()), np.uint32)
        take_sets(shingles, begins, which, taken)
        return taken, sizes

    def get_sets(which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        split = np.searchsorted(which, num_earlier)
        own = which[split:] - num_earlier
        if not config.keep_index:
            shingles, begins = gather(mine[own])
            sizes = np.diff(begins)
        else:
            # The index takes the sets of all members, so texts are walked once for both.
            if not everything:
                everything.append(gather(mine))
            shingles, begins = everything[0]
            sizes = np.diff(begins)
            if len(own) < len(mine):
                shingles, sizes = take(shingles, begins, own)
        if split:
            earlier, earlier_sizes = take(index.shingles, index.shingle_begins, which[:split])
            shingles = _joined(earlier, shingles, out_dir)
            sizes = np.concatenate([earlier_sizes, sizes])
        return shingles, np.concatenate([[0], np.cumsum(sizes)])

    return get_sets


def _joined(one: np.ndarray, two: np.ndarray, out_dir: Path) -> np.ndarray:
    """Both arrays in one file that is mapped."""
    # An empty file cannot be mapped.
    if not len(one) + len(two):
        return one
    file = scratch_dir(out_dir) / "joined-sets.npy"
    joined = np.lib.format.open_memmap(file, "w+", np.uint32, (len(one) + len(two),))
    joined[: len(one)], joined[len(one) :] = one, two
    return np.asarray(joined)


def _search_metrics(near: NearDuplicates, config: DedupConfig) -> dict[str, Any]:
    from tasks.kernels.dedup.banding import collision_probability

    one, families = choose_bands(config)
    recall = collision_probability(config.threshold, *one)
    family_recall = collision_probability(config.family_threshold, *families)
    return {
        "lsh": {
            "num_perms": config.num_perms,
            "num_bands": one[0],
            "rows_per_band": one[1],
            "threshold": config.threshold,
            "recall_at_threshold": round(recall, 4),
            "num_family_bands": families[0],
            "rows_per_family_band": families[1],
            "family_threshold": config.family_threshold,
            "recall_at_family_threshold": round(family_recall, 4),
        },
        "candidate_pairs": near.num_candidates[0],
        "family_candidate_pairs": near.num_candidates[1],
        "compared_pairs": near.num_compared,
        "verified_pairs": int((near.jaccard >= config.threshold).sum()),
        "family_pairs": len(near.jaccard),
    }

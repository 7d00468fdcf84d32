"""Splits documents into train and validation by family of near duplicates, so that no text is on
both sides; and by group, as the repository of code, where there are groups.

Families that share a group are joined, and so on: such a unit is divided as one family.

Families are ordered by a keyed hash of their id and taken until they hold the wanted fraction of
all bytes. A family larger than the whole validation set is passed over: one book must not become
the validation set of a library. The rule depends on ids and sizes alone, never on the order of
documents, and is exact for small corpora. It is carried as a threshold and the few families passed
over (fewer than 1 / fraction), so it fits any corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.runtime.stage import StageFailure


@dataclass(frozen=True)
class SplitRule:
    """A family validates if its hash is at most `threshold`, unless it was passed over."""

    seed: int
    threshold: bytes
    passed_over: frozenset[bytes]

    def split_of(self, family_id: bytes) -> str:
        is_first = family_hash(family_id, self.seed) <= self.threshold
        return "validation" if is_first and family_id not in self.passed_over else "train"

    def holds_out(self, family_ids: pa.ChunkedArray | pa.Array) -> np.ndarray:
        """Whether each family validates (bool)."""
        return np.array(
            [self.split_of(family) == "validation" for family in family_ids.to_pylist()], bool
        )

    def to_payload(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "threshold": self.threshold.hex(),
            "passed_over": sorted(f.hex() for f in self.passed_over),
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> SplitRule:
        passed_over = frozenset(bytes.fromhex(f) for f in payload["passed_over"])
        return cls(payload["seed"], bytes.fromhex(payload["threshold"]), passed_over)


def family_hash(family_id: bytes, seed: int) -> bytes:
    """128 bits that decide a family's place in the order."""
    return hashlib.blake2b(family_id, digest_size=16, key=seed.to_bytes(8, "little")).digest()


def join_families(families: pa.ChunkedArray, groups: pa.ChunkedArray) -> pa.Table:
    """`family_id` and `unit_id` of the families that share a group with others; the unit is named
    by the smallest of them. One row of a family and a group, or null, per document."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names = pc.unique(families)
    names = names.take(pc.sort_indices(names))
    groups = groups.combine_chunks().dictionary_encode()
    joins = groups.is_valid()
    of_family = pc.index_in(families.filter(joins), value_set=names).to_numpy()
    of_group = len(names) + groups.indices.filter(joins).to_numpy()
    num_nodes = len(names) + len(groups.dictionary)
    ones = np.ones(len(of_family), np.int8)
    edges = coo_array((ones, (of_family, of_group)), shape=(num_nodes, num_nodes))
    _, label = connected_components(edges, directed=False)
    # The families come first, sorted, so the first of a label is the smallest.
    _, first, place = np.unique(label[: len(names)], return_index=True, return_inverse=True)
    units = names.take(pa.array(first[place]))
    return pa.table({"family_id": names, "unit_id": units}).filter(pc.not_equal(names, units))


def units_of(families: pa.ChunkedArray, joined: pa.Table) -> pa.ChunkedArray:
    """The unit of each family: itself, unless `joined` names another."""
    place = pc.index_in(families, value_set=joined["family_id"].combine_chunks())
    return pc.coalesce(joined["unit_id"].combine_chunks().take(place), families)


def choose_split(family_bytes: Mapping[bytes, int], validation_frac: float, seed: int) -> SplitRule:
    """The rule for these families. Raises StageFailure for fewer than two."""
    if len(family_bytes) < 2:
        raise StageFailure(
            "only one family of near duplicates is left, and train and validation need one each;"
            " add other documents or loosen the quality rules"
        )
    wanted = validation_frac * sum(family_bytes.values())
    order = sorted((family_hash(family, seed), family) for family in family_bytes)
    if all(size > wanted for size in family_bytes.values()):
        # Every family alone is more than wanted: the smallest is the nearest to it.
        smallest = min(order, key=lambda item: (family_bytes[item[1]], item[0]))
        before = frozenset(family for place, family in order if place < smallest[0])
        return SplitRule(seed, smallest[0], before)
    # At most half is wanted, so the last family is never reached: something is left to train on.
    threshold, taken, passed_over = b"", 0, set()
    for place, family in order:
        if family_bytes[family] > wanted:
            passed_over.add(family)
            continue
        if taken >= wanted:
            break
        threshold, taken = place, taken + family_bytes[family]
    return SplitRule(
        seed, threshold, frozenset(f for f in passed_over if family_hash(f, seed) <= threshold)
    )

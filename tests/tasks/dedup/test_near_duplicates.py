"""From signatures to survivors: what banding proposes is verified, what it missed is found through
a neighbour."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest

from tasks.dedup.datasketch_exchange import shingle_hashes
from tasks.dedup.near_duplicates import (
    Banding,
    GetSets,
    NearDuplicates,
    Sketches,
    find_near_duplicates,
)
from tasks.kernels.dedup.banding import band_table


def sketches(signatures: np.ndarray, banding: Banding, get_sets: GetSets) -> Sketches:
    bands = band_table(signatures, [banding])
    return Sketches(
        *signatures.shape,
        [banding],
        lambda band: bands[band],
        lambda rows: signatures[rows],
        get_sets,
    )


def find(
    signatures: list[list[int]], sets: list[set[int]], threshold: float = 0.8
) -> NearDuplicates:
    def get_sets(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = [sorted(sets[row]) for row in rows]
        return np.array([x for s in chosen for x in s], np.uint32), np.cumsum(
            [0, *map(len, chosen)]
        )

    return find_near_duplicates(
        sketches(np.array(signatures, np.uint32), (2, 2), get_sets), threshold, 0.5, 16
    )


CHAIN = [[1, 1, 2, 2], [1, 1, 3, 3], [9, 9, 3, 3]]  # 0 meets 1 and 1 meets 2, 0 never meets 2


def test_a_removal_through_a_neighbour_leaves_its_evidence() -> None:
    found = find(CHAIN, [set(range(10)), set(range(11)), set(range(12))])
    assert found.survivor.tolist() == [0, 0, 0]
    assert list(zip(found.a, found.b, found.jaccard, strict=True)) == [
        (0, 1, 10 / 11),
        (0, 2, 10 / 12),
        (1, 2, 11 / 12),
    ]
    assert found.num_candidates == (2,)


def test_signatures_that_agree_by_chance_remove_nothing() -> None:
    found = find(CHAIN, [set(range(10)), set(range(20, 30)), set(range(40, 50))])
    assert found.survivor.tolist() == [0, 1, 2]
    assert found.a.size == 0
    assert found.num_compared == 2


def test_hopeless_estimates_are_not_compared() -> None:
    places = np.arange(100)
    signatures = [
        places,
        np.where(places < 8, places, 1000 + places),
    ]  # 8 of 100 agree, four errors below 0.5 and more
    asked: list[int] = []

    def get_sets(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(rows.tolist())
        return np.zeros(0, np.uint32), np.zeros(rows.size + 1, np.int64)

    found = find_near_duplicates(
        sketches(np.array(signatures, np.uint32), (25, 4), get_sets), 0.8, 0.5, 16
    )
    assert found.num_candidates == (1,)
    assert (found.num_compared, asked) == (0, [])


def test_documents_without_candidates_survive() -> None:
    found = find([[1, 1, 1, 1], [2, 2, 2, 2]], [{1}, {2}])
    assert found.survivor.tolist() == [0, 1]
    assert find([[1, 1, 1, 1]], [{1}]).survivor.tolist() == [0]


@pytest.mark.parametrize("case", ["unicode-forms", "typography"])
def test_copies_that_differ_by_encoding_or_typography_have_the_same_shingles(case: str) -> None:
    text = "Le matin, la boulangère ouvre déjà sa boutique – près de l’église de la ville."
    copies = {
        "unicode-forms": [
            unicodedata.normalize("NFD", text),
            text.replace("ouvre", "ou\u00advre"),
            "".join(chr(ord(c) + 0xFEE0) if "a" <= c <= "z" else c for c in text),
        ],
        "typography": [text.replace("–", "-").replace("’", "'"), text.replace("– ", "")],
    }[case]
    for copy in copies:
        assert copy != text and np.array_equal(shingle_hashes(copy, 5), shingle_hashes(text, 5))

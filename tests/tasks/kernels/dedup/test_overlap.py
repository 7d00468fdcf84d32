"""Buckets give their pairs, similarity is exact, and only verified members go."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.dedup.banding import band_table, candidate_pairs
from tasks.kernels.dedup.overlap import choose_survivors, jaccard_of_pairs, smallest_connected

small_sets = st.lists(st.sets(st.integers(0, 12), max_size=10), min_size=1, max_size=12)


def laid_out(sets: list[set[int]]) -> tuple[np.ndarray, np.ndarray]:
    begins = np.cumsum([0, *map(len, sets)])
    return np.array([x for s in sets for x in sorted(s)], np.uint64), begins


def similarity(a: set[int], b: set[int]) -> float:
    return len(a & b) / len(a | b) if a and b else 0.0


def all_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = sorted(itertools.combinations(range(count), 2), key=lambda p: (p[1], p[0]))
    return np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64)


@settings(deadline=None)
@given(small_sets, st.sampled_from([0.01, 0.5, 0.8, 1.0]))
def test_similarity_is_exact_wherever_it_matters(sets: list[set[int]], at_least: float) -> None:
    a, b = all_pairs(len(sets))
    for x, y, found in zip(a, b, jaccard_of_pairs(*laid_out(sets), a, b, at_least), strict=True):
        exact = similarity(sets[x], sets[y])
        assert found == exact or (found == 0.0 and exact < at_least)


@settings(deadline=None)
@given(small_sets, st.sampled_from([0.4, 0.6, 1.0]), st.data())
def test_only_sets_verified_against_a_survivor_go(
    sets: list[set[int]], threshold: float, data: st.DataObject
) -> None:
    a, b = all_pairs(len(sets))
    seen = np.array(data.draw(st.lists(st.booleans(), min_size=a.size, max_size=a.size)), bool)
    a, b = a[seen], b[seen]
    shingles, begins = laid_out(sets)
    jaccard = jaccard_of_pairs(shingles, begins, a, b, threshold)
    survivor, measured = choose_survivors(
        shingles, begins, a, b, jaccard, threshold, np.arange(len(sets))
    )
    for member, head in enumerate(survivor):
        assert survivor[head] == head <= member
        if head != member:
            assert measured[member] == similarity(sets[head], sets[member]) >= threshold
    # No pair that was seen to be alike stays whole.
    stays = survivor == np.arange(len(sets))
    assert not (stays[a] & stays[b] & (jaccard >= threshold)).any()


def test_a_chain_whose_ends_differ_keeps_both_ends() -> None:
    sets = [set(range(10)), set(range(1, 11)), set(range(2, 12))]  # neighbours 9/11, ends 8/12
    a, b = np.array([0, 1]), np.array([1, 2])
    shingles, begins = laid_out(sets)
    survivor, _ = choose_survivors(
        shingles, begins, a, b, jaccard_of_pairs(shingles, begins, a, b, 0.5), 0.8, np.arange(3)
    )
    assert survivor.tolist() == [0, 0, 2]


def test_a_member_is_compared_with_the_survivor_of_its_neighbour() -> None:
    sets = [set(range(10)), set(range(11)), set(range(12))]  # banding proposed 0-1 and 1-2, not 0-2
    a, b = np.array([0, 1]), np.array([1, 2])
    shingles, begins = laid_out(sets)
    survivor, measured = choose_survivors(
        shingles, begins, a, b, jaccard_of_pairs(shingles, begins, a, b, 0.5), 0.8, np.arange(3)
    )
    assert survivor.tolist() == [0, 0, 0]
    assert measured[2] == 10 / 12


@settings(deadline=None)
@given(st.integers(1, 30), st.data())
def test_components_carry_their_smallest_node(count: int, data: st.DataObject) -> None:
    edges = data.draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=40)
    )
    labels = list(range(count))
    for _ in range(count):  # the plainest way: spread the smaller label until nothing changes
        for x, y in edges:
            labels[x] = labels[y] = min(labels[x], labels[y])
    a, b = (np.array([e[i] for e in edges], np.int64) for i in (0, 1))
    assert smallest_connected(count, a, b).tolist() == labels


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=20))
def test_small_buckets_give_all_their_pairs(rows: list[tuple[int, ...]]) -> None:
    expected = sorted(
        (i << 32) | j
        for i, j in itertools.combinations(range(len(rows)), 2)
        if rows[i][:2] == rows[j][:2] or rows[i][2:] == rows[j][2:]
    )
    assert candidate_pairs(band_table(np.array(rows, np.uint32), [(2, 2)]), 20).tolist() == expected


def test_a_large_bucket_gives_the_pairs_of_its_first_documents_and_one_star() -> None:
    bands = band_table(np.ones((1000, 8), np.uint32), [(2, 4)])
    first = [(i << 32) | j for i, j in itertools.combinations(range(16), 2)]
    assert candidate_pairs(bands, 16).tolist() == sorted(first + list(range(16, 1000)))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(2, 5),
)
def test_later_documents_change_no_pair_of_earlier_ones(
    rows: list[tuple[int, ...]], num_earlier: int, full: int
) -> None:
    bands = band_table(np.array(rows, np.uint32), [(2, 2)])
    every = candidate_pairs(bands, full)
    among_earlier = candidate_pairs(bands[:, :num_earlier], full)
    later = candidate_pairs(bands, full, num_earlier)
    assert sorted([*among_earlier.tolist(), *later.tolist()]) == every.tolist()


def test_no_documents_give_no_pairs() -> None:
    assert candidate_pairs(band_table(np.zeros((0, 8), np.uint32), [(2, 4)]), 16).size == 0

"""Measures of variety, against values that are known otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.analysis.diversity import (
    cluster_law,
    concentration,
    mean_of_groups,
    ngram_entropies,
    type_growth,
    vendi_score,
)


def test_concentration_of_equal_and_of_single_amounts() -> None:
    even = concentration([3, 3, 0, 3, 3])
    assert (even.entropy_bits, even.effective, even.hhi, even.num_labels) == pytest.approx(
        (2, 4, 0.25, 4)
    )
    alone = concentration([7])
    assert (alone.entropy_bits, alone.effective, alone.hhi) == (0, 1, 1)
    assert concentration([]).num_labels == 0


def test_growth_finds_the_exponent_of_a_stream_made_with_it() -> None:
    random = np.random.default_rng(0)
    # A new type comes as the n-th unit with the chance that V(n) = 5 n^0.6 grows by.
    n = np.arange(1, 200_001)
    new = random.random(len(n)) < np.minimum(1, 5 * 0.6 * n**-0.4)
    units = np.where(new, np.cumsum(new), random.integers(0, np.maximum(np.cumsum(new), 1))).astype(
        np.uint64
    )
    growth = type_growth(units)
    assert growth.exponent == pytest.approx(0.6, abs=0.02) and growth.r_squared > 0.999
    assert growth.curve[-1] == (len(units), len(np.unique(units)))
    assert type_growth(units[:500]).exponent is None and type_growth(units[:0]).curve == ()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=300))
def test_growth_counts_types_of_every_beginning(values) -> None:
    for mark, types in type_growth(np.array(values, np.uint64)).curve:
        assert types == len(set(values[:mark]))


def test_entropies_of_a_fair_die_and_of_a_cycle() -> None:
    random = np.random.default_rng(1)
    die = random.integers(0, 8, 400_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    one, two, three = ngram_entropies(die, np.array([0, 150_000, 400_000]))
    assert (one, two, three) == pytest.approx((3, 6, 9), abs=0.01)
    one, two, three = ngram_entropies(
        np.tile(np.arange(4, dtype=np.uint64), 5000), np.array([0, 20_000])
    )
    assert (one, two, three) == pytest.approx((2, 2, 2), abs=0.01)


def test_no_ngram_crosses_from_one_document_into_the_next() -> None:
    units = np.array([1, 2, 1, 2, 1, 2], np.uint64)
    apart = ngram_entropies(units, np.array([0, 2, 4, 6]))
    assert apart[1] == pytest.approx(0) and apart[2] is None
    assert ngram_entropies(units, np.array([0, 6]))[1] > 0.9
    assert ngram_entropies(units[:0], np.array([0])) == [None, None, None]


def test_vendi_counts_groups_of_equal_documents() -> None:
    random = np.random.default_rng(2)
    different = random.integers(0, 2**32, (40, 64), np.uint32)
    assert vendi_score(different) == pytest.approx(40)
    assert vendi_score(np.repeat(different[:1], 40, axis=0)) == pytest.approx(1)
    assert vendi_score(np.repeat(different[:10], 4, axis=0)) == pytest.approx(10)
    # Two documents that agree in half of the places: eigenvalues 3/4 and 1/4.
    pair = np.stack([different[0], np.where(np.arange(64) < 32, different[0], different[1])])
    assert vendi_score(pair) == pytest.approx(
        math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    )


def test_interval_of_groups_covers_the_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(3)
    intervals = [mean_of_groups(random.normal(5, 2, 8)) for _ in range(2000)]
    assert 0.935 < np.mean([i.low <= 5 <= i.high for i in intervals]) < 0.965
    assert mean_of_groups([1.0]) is None


def test_cluster_law_finds_the_exponent_of_drawn_sizes() -> None:
    for exponent in (1.8, 2.5, 3.5):
        sizes = np.arange(2, 200_000)
        chances = sizes**-exponent
        drawn = np.random.default_rng(4).choice(sizes, 20_000, p=chances / chances.sum())
        law = cluster_law(
            {int(s): int(n) for s, n in zip(*np.unique(drawn, return_counts=True), strict=True)}
            | {1: 10**6}
        )
        assert abs(law.exponent - exponent) < 4 * law.standard_error < 0.1
        assert law.distance < 0.015 and law.num_clusters == 20_000
    assert cluster_law({2: 5, 3: 2}) is None and cluster_law({1: 1000}) is None
    assert cluster_law({2: 500, 1000: 500}).distance > 0.2

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tasks.corpus.statistics import (
    detectable_difference,
    holm,
    mcnemar,
    mean_interval,
    ratio_bootstrap,
    roc_auc,
    subset_gain,
    wilson_interval,
)


def test_bootstrap_error_of_a_mean_is_the_analytic_one() -> None:
    rng = np.random.default_rng(0)
    for n in (30, 400):
        values = rng.gamma(2.0, 3.0, n)
        analytic = values.std(ddof=0) / math.sqrt(n)
        interval = ratio_bootstrap(values, np.ones(n), 4000, seed=1)
        assert interval.value == pytest.approx(values.mean())
        assert interval.standard_error == pytest.approx(analytic, rel=0.05)


def test_bootstrap_error_of_a_ratio_is_that_of_the_delta_method() -> None:
    rng = np.random.default_rng(1)
    size = rng.lognormal(5, 0.7, 500)
    bits = size * rng.normal(2.0, 0.3, 500)
    residual = bits - bits.sum() / size.sum() * size
    analytic = math.sqrt((residual**2).sum()) / size.sum()
    assert ratio_bootstrap(bits, size, 4000, seed=2).standard_error == pytest.approx(
        analytic, rel=0.08
    )


def test_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    for num_documents in (20, 80):
        rng = np.random.default_rng(2)
        covered, trials = 0, 1000
        for trial in range(trials):
            size = rng.lognormal(6, 0.5, num_documents)
            bits = size * rng.normal(1.5, 0.4, num_documents)
            interval = ratio_bootstrap(bits, size, 600, seed=trial)
            assert interval.low is not None and interval.high is not None
            covered += interval.low <= 1.5 <= interval.high
        assert 0.93 <= covered / trials <= 0.97


def test_interval_depends_on_the_seed_alone() -> None:
    bits, size = np.arange(1.0, 50.0), np.full(49, 7.0)
    assert ratio_bootstrap(bits, size, 200, seed=3) == ratio_bootstrap(bits, size, 200, seed=3)
    assert ratio_bootstrap(bits, size, 200, seed=3) != ratio_bootstrap(bits, size, 200, seed=4)


def test_one_observation_has_a_value_and_no_interval() -> None:
    interval = ratio_bootstrap(np.array([6.0]), np.array([3.0]), 100, seed=0)
    assert (interval.value, interval.low, interval.high, interval.standard_error) == (
        2.0,
        None,
        None,
        None,
    )


def test_no_observations_and_empty_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="over 0 observations"):
        ratio_bootstrap(np.zeros(0), np.zeros(0), 10, seed=0)
    with pytest.raises(ValueError, match="positive denominator"):
        ratio_bootstrap(np.ones(2), np.array([1.0, 0.0]), 10, seed=0)


SCORES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=25)


@given(SCORES, SCORES)
def test_roc_area_is_the_share_of_pairs_in_order(
    positives: list[float], negatives: list[float]
) -> None:
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    found = roc_auc(np.array(positives), np.array(negatives))
    assert found.value == pytest.approx(np.mean(pairs))
    assert found.low is None or 0 <= found.low <= found.value <= found.high <= 1


def test_roc_interval_covers_the_true_area_as_often_as_it_says() -> None:
    # Two normal distributions one standard deviation apart: the area is Φ(1/√2).
    rng, true = np.random.default_rng(0), 0.7602499389065233
    covered = 0
    for _ in range(400):
        found = roc_auc(rng.normal(1, 1, 60), rng.normal(0, 1, 90))
        covered += found.low <= true <= found.high
    assert 0.92 <= covered / 400 <= 0.98


def test_roc_area_needs_both_classes() -> None:
    with pytest.raises(ValueError, match="both classes"):
        roc_auc(np.zeros(0), np.ones(3))


@given(st.integers(1, 400), st.data())
def test_wilson_interval_is_that_of_scipy(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx(tuple(expected), abs=1e-6)


def test_all_right_and_all_wrong_have_intervals_of_positive_width() -> None:
    for share in (0.0, 1.0):
        found = mean_interval(np.full(10, share), None, 200, seed=0)
        assert found.value == share and found.low < found.high
        assert found.low >= 0 and found.high <= 1


def test_interval_of_a_share_covers_the_truth_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        found = mean_interval((rng.random(120) < 0.31).astype(float), None, 100, seed=0)
        covered += found.low <= 0.31 <= found.high
    assert 0.93 <= covered / 2000 <= 0.97


def test_interval_over_clusters_covers_the_truth_where_items_depend_on_each_other() -> None:
    rng, covered, too_narrow = np.random.default_rng(1), 0, 0
    clusters = [str(n // 6) for n in range(900)]
    for seed in range(400):
        # All six questions about a passage mostly share its difficulty.
        values = np.clip(np.repeat(rng.normal(0.5, 0.2, 150), 6) + rng.normal(0, 0.05, 900), 0, 1)
        found = mean_interval(values, clusters, 300, seed)
        covered += found.low <= 0.5 <= found.high
        alone = mean_interval(values, None, 300, seed)
        too_narrow += not alone.low <= 0.5 <= alone.high
    assert 0.93 <= covered / 400 <= 0.97
    assert too_narrow / 400 > 0.2


def test_right_and_wrong_answers_to_one_passage_count_as_one_witness() -> None:
    values = np.repeat([1.0, 0.0], 60)
    alone = mean_interval(values, None, 1000, seed=0)
    passages = mean_interval(values, [str(n // 6) for n in range(120)], 1000, seed=0)
    assert passages.num_observations == 20
    assert passages.high - passages.low > 2 * (alone.high - alone.low)


def test_passages_answered_all_rightly_or_wrongly_have_intervals_of_positive_width() -> None:
    passages = [str(n // 3) for n in range(30)]
    for share in (0.0, 1.0):
        found = mean_interval(np.full(30, share), passages, 200, seed=0)
        alone = mean_interval(np.full(10, share), None, 200, seed=0)
        assert (found.value, found.low, found.high) == (share, alone.low, alone.high)


def test_one_item_or_one_cluster_has_no_interval() -> None:
    assert mean_interval(np.ones(1), None, 100, seed=0).low is None
    assert mean_interval(np.array([1.0, 0.0]), ["p", "p"], 100, seed=0).low is None


def test_a_random_subset_differs_from_the_whole_in_five_of_a_hundred() -> None:
    rng, clear = np.random.default_rng(3), 0
    clusters = [str(n // 2) for n in range(160)]
    for seed in range(400):
        values = (rng.random(160) < 0.4).astype(float)
        inside = rng.random(160) < 0.7
        found = subset_gain(values, inside, clusters, 200, seed)
        assert found.value == pytest.approx(values[inside].mean() - values.mean())
        clear += not found.low <= 0 <= found.high
    assert 0.03 <= clear / 400 <= 0.07


def test_a_subset_of_all_values_or_of_one_cluster_has_no_interval() -> None:
    values, inside = np.array([1.0, 0.0, 1.0]), np.array([True, True, False])
    everything = subset_gain(values, np.ones(3, bool), ["a", "b", "c"], 100, seed=0)
    assert (everything.value, everything.low) == (0.0, None)
    assert subset_gain(values, inside, ["a", "a", "a"], 100, seed=0).low is None
    with pytest.raises(ValueError, match="at least one value"):
        subset_gain(values, np.zeros(3, bool), ["a", "b", "c"], 100, seed=0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=80))
def test_mcnemar_is_the_exact_binomial_test_of_discordant_pairs(
    pairs: list[tuple[bool, bool]],
) -> None:
    first, other = (np.array([pair[n] for pair in pairs], float) for n in (0, 1))
    wins, losses = int((other > first).sum()), int((other < first).sum())
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert mcnemar(first, other) == pytest.approx(expected)


def test_mcnemar_of_more_pairs_than_doubles_can_count_is_a_number() -> None:
    first, other = np.zeros(3000), np.ones(3000)
    other[:1450], first[:1450] = 0, 1
    expected = stats.binomtest(1550, 3000).pvalue
    assert mcnemar(first, other) == pytest.approx(expected)


def test_paired_tests_find_a_difference_where_there_is_none_in_five_of_a_hundred() -> None:
    rng, found, clear = np.random.default_rng(2), 0, 0
    for seed in range(1000):
        skill = rng.random(200)
        first, other = ((rng.random(200) < skill).astype(float) for _ in range(2))
        found += mcnemar(first, other) < 0.05
        interval = ratio_bootstrap(other - first, np.ones(200), 300, seed)
        clear += not interval.low <= 0 <= interval.high
    assert found / 1000 <= 0.06 and clear / 1000 <= 0.06


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_orders_and_bounds_the_corrected_values(p_values: list[float]) -> None:
    found = holm(p_values)
    assert all(p <= q <= min(1, p * len(p_values)) for p, q in zip(p_values, found, strict=True))
    ranked = [found[n] for n in sorted(range(len(found)), key=lambda n: p_values[n])]
    assert ranked == sorted(ranked)


def test_holm_is_the_published_procedure() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_detectable_difference_is_found_in_four_of_five_trials() -> None:
    rng = np.random.default_rng(3)
    values = (np.arange(400) % 2).astype(float)
    difference = detectable_difference(values)
    assert difference == pytest.approx(0.099, abs=0.001)
    shown = 0
    for _ in range(600):
        one, two = rng.random(400) < 0.5 - difference / 2, rng.random(400) < 0.5 + difference / 2
        error = math.sqrt((one.var(ddof=1) + two.var(ddof=1)) / 400)
        shown += two.mean() - one.mean() > 1.96 * error
    assert 0.75 <= shown / 600 <= 0.86
    assert detectable_difference(np.ones(5)) is None
    assert detectable_difference(np.full(3, 0.1)) is None  # their mean is not 0.1
    # Values of a cluster that are all alike are one witness.
    clusters = [str(n // 8) for n in range(400)]
    witnesses = detectable_difference((np.arange(50) % 2).astype(float))
    clustered = detectable_difference(np.repeat(np.arange(50) % 2, 8).astype(float), clusters)
    assert clustered == pytest.approx(witnesses)

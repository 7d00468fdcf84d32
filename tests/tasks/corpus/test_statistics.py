import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.corpus.statistics import ratio_bootstrap, roc_auc


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
    rng = np.random.default_rng(2)
    covered, trials = 0, 300
    for trial in range(trials):
        size = rng.lognormal(6, 0.5, 80)
        bits = size * rng.normal(1.5, 0.4, 80)
        interval = ratio_bootstrap(bits, size, 300, seed=trial)
        assert interval.low is not None and interval.high is not None
        covered += interval.low <= 1.5 <= interval.high
    assert 0.90 <= covered / trials <= 0.98


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

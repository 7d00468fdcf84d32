"""A law fitted to runs is the one that they came from, with intervals that hold it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.planner.scaling import LAWS, ScalingLaw
from llm_core.planner.scaling_fit import Point, ScalingFit, fit_law, fit_scaling

TRUE = LAWS["besiroglu"]


def runs(
    seed: int, noise: float = 0.003, law: ScalingLaw = TRUE, budgets: int = 5, sizes: int = 7
) -> list[Point]:
    """Sizes from a quarter to four times the best, for budgets of 1e18 to 1e20 operations."""
    random, found = np.random.default_rng(seed), []
    for flops in np.geomspace(1e18, 1e20, budgets):
        for factor in np.geomspace(1 / 4, 4, sizes):
            weights = factor * law.best_weights(flops)
            tokens = flops / 6 / weights
            loss = law.loss(weights, tokens) * np.exp(random.normal(0, noise))
            found.append(Point(weights, tokens, float(loss)))
    return found


def fitted(points: list[Point]) -> ScalingLaw:
    return fit_law(*np.array([dataclasses.astuple(point) for point in points]).T)


def test_noisy_runs_give_their_exponent_and_the_best_size_far_beyond_them() -> None:
    """Of 12 draws with 0.3 % of noise; of the largest budget, 30 times more is asked for."""
    laws = [fitted(runs(seed)) for seed in range(12)]
    exponents = [law.exponent for law in laws]
    assert all(value == pytest.approx(TRUE.exponent, abs=0.02) for value in exponents)
    assert sum(0.493 < value < 0.521 for value in exponents) >= 11
    assert np.median(exponents) == pytest.approx(TRUE.exponent, abs=0.005)
    ratios = [law.best_weights(3e21) / TRUE.best_weights(3e21) for law in laws]
    assert all(0.85 < ratio < 1.15 for ratio in ratios)


@settings(max_examples=10)
@given(st.floats(1.0, 2.5), st.floats(0.25, 0.6), st.floats(0.25, 0.6), st.floats(0.5, 2.0))
def test_runs_without_noise_give_their_law(
    floor: float, alpha: float, beta: float, ratio: float
) -> None:
    law = ScalingLaw(floor, 0.5 * 1e9**alpha, 0.5 * ratio * 2e10**beta, alpha, beta)
    found = fitted(runs(0, 0.0, law))
    assert found.exponent == pytest.approx(law.exponent, abs=1e-3)
    assert found.floor == pytest.approx(law.floor, rel=5e-3)


def test_a_diverged_run_hardly_moves_the_law() -> None:
    points = runs(1, 0.001)
    spoiled = [dataclasses.replace(points[0], loss=points[0].loss + 2), *points[1:]]
    assert fitted(spoiled).exponent == pytest.approx(fitted(points).exponent, abs=0.01)


def test_an_interval_holds_the_true_value_and_grows_with_noise() -> None:
    quiet, loud = (
        fit_scaling(runs(2, noise, budgets=4, sizes=5), num_draws=40) for noise in (0.002, 0.01)
    )
    for found in (quiet, loud):
        assert found.exponent.low < TRUE.exponent < found.exponent.high
        assert found.exponent.low < found.exponent.value < found.exponent.high
        best = found.optimum(1e20)
        assert best.num_weights.low < TRUE.best_weights(1e20) < best.num_weights.high
        assert best.num_tokens.value * best.num_weights.value * 6 == pytest.approx(1e20)
    widths = [found.exponent.high - found.exponent.low for found in (quiet, loud)]
    assert widths[1] > 2 * widths[0]
    assert quiet.largest_error < 0.01


def test_draws_are_those_of_their_seed() -> None:
    points = runs(3, budgets=3, sizes=3)
    first, again, other = (fit_scaling(points, num_draws=5, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.law == other.law and first.draws != other.draws


def test_the_best_model_of_a_budget_is_better_than_its_neighbours() -> None:
    found = ScalingFit(TRUE, (), ())
    best = found.optimum(1e21)
    for factor in (0.8, 1.25):
        weights = factor * best.num_weights.value
        assert TRUE.loss(weights, 1e21 / 6 / weights) > best.loss.value


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"found 5, 5, 5"):
        fit_scaling(runs(0)[:5], num_draws=1)
    same = [dataclasses.replace(point, num_tokens=1e10) for point in runs(0)[:9]]
    with pytest.raises(ConfigError, match=r"found 9, 9, 1"):
        fit_scaling(same, num_draws=1)

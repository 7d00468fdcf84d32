"""Fits L(N, D) = E + A / N^α + B / D^β to measured runs, with bootstrap intervals.

The sum of Huber losses of ln L (δ = 1e-3) is least, as in Hoffmann et al. (2022), appendix D.2.
Where α and β are given, the best E, A and B are linear (variable projection, Czech et al., 2026): a
grid over the two gives the start, a least-squares solver finishes. Intervals are percentiles over
runs drawn with replacement; those of A and B alone are wide, since they move together, so the
exponent a = β / (α + β) and the best size for a budget are what is reported.

Cost: about 20 ms a fit of 12 runs, so twenty seconds for a thousand draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from llm_core.config import ConfigError
from llm_core.planner.scaling import ScalingLaw

# R runs · G points of the grid

Numbers = NDArray[np.float64]
HUBER_DELTA = 1e-3
"""Of ln L: deviations of a thousandth count as noise, larger ones as outliers."""
POWERS = np.linspace(0.05, 1.5, 30)
"""Of both axes of the grid."""
MIN_RUNS, MIN_SIZES = 6, 3
NUM_DRAWS = 1000
LOW, HIGH = 2.5, 97.5
"""Percentiles of an interval of 95 %."""


@dataclass(frozen=True)
class Point:
    """One finished training: weights, tokens, and its loss on held-out text in nats per token."""

    num_weights: float
    num_tokens: float
    loss: float

    @property
    def flops(self) -> float:
        return 6 * self.num_weights * self.num_tokens


@dataclass(frozen=True)
class Interval:
    """A value with the bounds of 95 % of the draws."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Optimum:
    """The model of the least loss that a budget of operations can train."""

    flops: float
    num_weights: Interval
    num_tokens: Interval
    loss: Interval


@dataclass(frozen=True)
class ScalingFit:
    """The law that fits best, and those of the draws."""

    law: ScalingLaw
    draws: tuple[ScalingLaw, ...]
    points: tuple[Point, ...]

    @property
    def exponent(self) -> Interval:
        """a of N* = G (C / 6)^a."""
        return self._interval([each.exponent for each in (self.law, *self.draws)])

    @property
    def largest_error(self) -> float:
        """Of a run's loss, as a part of it."""
        return max(
            abs(self.law.loss(p.num_weights, p.num_tokens) / p.loss - 1) for p in self.points
        )

    def optimum(self, flops: float) -> Optimum:
        laws = (self.law, *self.draws)
        weights = [law.best_weights(flops) for law in laws]
        tokens = [law.best_tokens(flops) for law in laws]
        losses = [law.loss(n, d) for law, n, d in zip(laws, weights, tokens, strict=True)]
        return Optimum(flops, *map(self._interval, (weights, tokens, losses)))

    @staticmethod
    def _interval(values: Sequence[float]) -> Interval:
        """The first is that of the best fit."""
        low, high = np.percentile(values[1:], [LOW, HIGH]) if values[1:] else (np.nan, np.nan)
        return Interval(values[0], float(low), float(high))


def fit_scaling(points: Sequence[Point], num_draws: int = NUM_DRAWS, seed: int = 0) -> ScalingFit:
    """Deterministic for equal points, draws and seed. Raises ConfigError for too few runs."""
    sizes, lengths = ({getattr(p, name) for p in points} for name in ("num_weights", "num_tokens"))
    if len(points) < MIN_RUNS or len(sizes) < MIN_SIZES or len(lengths) < MIN_SIZES:
        raise ConfigError(
            f"a scaling law needs {MIN_RUNS} runs of {MIN_SIZES} sizes and {MIN_SIZES} numbers of"
            f" tokens (found {len(points)}, {len(sizes)}, {len(lengths)}); vary both, as in"
            " experiment=scaling_sweep"
        )
    values_3R = np.array([(p.num_weights, p.num_tokens, p.loss) for p in points]).T
    law, random = fit_law(*values_3R), np.random.default_rng(seed)
    draws: list[ScalingLaw] = []
    while len(draws) < num_draws:
        chosen_R = random.integers(len(points), size=len(points))
        # Of fewer sizes or lengths than unknowns of an axis, no draw says anything of it.
        if min(len(set(values_3R[axis, chosen_R])) for axis in (0, 1)) >= MIN_SIZES:
            draws.append(fit_law(*values_3R[:, chosen_R]))
    return ScalingFit(law, tuple(draws), tuple(points))


def fit_law(weights_R: Numbers, tokens_R: Numbers, loss_R: Numbers) -> ScalingLaw:
    """The best fit, without an interval."""
    # Around their means, so that factors are of the size of a loss and powers barely move them.
    centre_N, centre_D = (np.exp(np.log(x).mean()) for x in (weights_R, tokens_R))
    n_R, d_R, goal_R = np.log(weights_R / centre_N), np.log(tokens_R / centre_D), np.log(loss_R)

    def terms(x: Numbers) -> Numbers:
        e, a, b, alpha, beta = x
        return np.stack([np.full_like(n_R, e), a - alpha * n_R, b - beta * d_R])

    def error(x: Numbers) -> Numbers:
        found: Numbers = np.logaddexp.reduce(terms(x)) - goal_R
        return found

    def slope(x: Numbers) -> Numbers:
        share_3R = np.exp(terms(x) - np.logaddexp.reduce(terms(x)))
        return np.stack([*share_3R, -share_3R[1] * n_R, -share_3R[2] * d_R], axis=1)

    start = _best_of_grid(n_R, d_R, loss_R)
    low, high = [-30.0] * 3 + [0.01] * 2, [10.0] * 3 + [3.0] * 2
    found = least_squares(
        error, start, slope, (low, high), loss="huber", f_scale=HUBER_DELTA, x_scale="jac"
    )
    e, a, b, alpha, beta = map(float, found.x)
    factor_N, factor_D = np.exp(a) * centre_N**alpha, np.exp(b) * centre_D**beta
    return ScalingLaw(float(np.exp(e)), float(factor_N), float(factor_D), alpha, beta)


def _best_of_grid(n_R: Numbers, d_R: Numbers, loss_R: Numbers) -> Numbers:
    """(ln E, ln A, ln B, α, β) of the grid's best point, E, A and B by linear least squares."""
    alpha_G, beta_G = (x.ravel() for x in np.meshgrid(POWERS, POWERS))
    columns_G3R = np.stack(
        [
            np.ones((len(alpha_G), len(n_R))),
            np.exp(-alpha_G[:, None] * n_R),
            np.exp(-beta_G[:, None] * d_R),
        ],
        axis=1,
    )
    # Relative errors, which for small ones are those of ln L.
    scaled_G3R = columns_G3R / loss_R
    square_G33 = scaled_G3R @ scaled_G3R.transpose(0, 2, 1) + 1e-9 * np.eye(3)
    factors_G3 = np.linalg.solve(square_G33, scaled_G3R.sum(2)[..., None])[..., 0]
    factors_G3 = np.maximum(factors_G3, 1e-6 * loss_R.min())
    error_GR = np.log((factors_G3[:, None] @ scaled_G3R)[:, 0])
    size_GR = np.abs(error_GR)
    huber_G = np.where(
        size_GR < HUBER_DELTA, size_GR**2 / 2, HUBER_DELTA * (size_GR - HUBER_DELTA / 2)
    ).sum(1)
    best = int(huber_G.argmin())
    return np.array([*np.log(factors_G3[best]), alpha_G[best], beta_G[best]])

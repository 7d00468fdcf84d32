"""Gives intervals for numbers: bootstrap for ratios of sums over documents, and for areas under ROC
curves.

bits per byte is Σ bits / Σ bytes over documents, and tokens of one document are not independent
witnesses, so whole documents are drawn with replacement (Efron, 1979; ratio estimator, percentile
interval). The standard error is the standard deviation of the replicates, not that divided by the
root of their number. Cost: samples × documents numbers.

The percentile interval is too narrow for a handful of documents; callers say how many there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CHUNK_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval and standard error, None where they do not exist."""

    value: float
    low: float | None
    high: float | None
    standard_error: float | None
    num_observations: int


def ratio_bootstrap(
    numerators: np.ndarray, denominators: np.ndarray, num_samples: int, seed: int
) -> Interval:
    """Σ numerators / Σ denominators with its 95 % bootstrap interval over observations.

    Raises ValueError without observations or with a denominator that is not positive.
    """
    numerators = np.asarray(numerators, np.float64)
    denominators = np.asarray(denominators, np.float64)
    num = len(numerators)
    if num == 0 or denominators.min() <= 0:
        raise ValueError(
            f"a ratio over {num} observations needs at least one, each with a positive denominator"
        )
    value = float(numerators.sum() / denominators.sum())
    if num == 1:
        return Interval(value, None, None, None, 1)
    rng = np.random.default_rng(seed)
    replicates = np.empty(num_samples)
    # In chunks, as all draws at once would be samples × observations numbers in memory.
    chunk = max(1, CHUNK_NUMBERS // num)
    for begin in range(0, num_samples, chunk):
        drawn = rng.integers(0, num, size=(min(chunk, num_samples - begin), num))
        ratios = numerators[drawn].sum(1) / denominators[drawn].sum(1)
        replicates[begin : begin + len(drawn)] = ratios
    low, high = np.quantile(replicates, [0.025, 0.975])
    return Interval(value, float(low), float(high), float(replicates.std(ddof=1)), num)


def roc_auc(positives: np.ndarray, negatives: np.ndarray) -> Interval:
    """Probability that a positive scores higher than a negative, with its 95 % interval.

    Ties count half. Variance by DeLong et al. 1988 (from mid-ranks, Sun and Xu 2014), interval on
    the logit scale, so that it stays inside 0 to 1. Raises ValueError without positives or
    negatives. Interval and error are None where all pairs are alike: 0 and 1 allow none.
    """
    m, n = len(positives), len(negatives)
    if m == 0 or n == 0:
        raise ValueError(
            f"an area under a ROC curve needs both classes, got {m} positives and {n} negatives"
        )
    both = np.concatenate([positives, negatives]).astype(np.float64)
    ranks = _midranks(both)
    # Share of the other class below each one, ties half.
    below_positive = (ranks[:m] - _midranks(both[:m])) / n
    above_negative = 1 - (ranks[m:] - _midranks(both[m:])) / m
    value = float(below_positive.mean())
    if min(m, n) < 2 or not 0 < value < 1:
        return Interval(value, None, None, None, m + n)
    error = math.sqrt(float(below_positive.var(ddof=1)) / m + float(above_negative.var(ddof=1)) / n)
    logit, width = math.log(value / (1 - value)), 1.959963984540054 * error / (value * (1 - value))
    low, high = (1 / (1 + math.exp(-edge)) for edge in (logit - width, logit + width))
    return Interval(value, low, high, error, m + n)


def _midranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value from 1 on; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def wilson_interval(successes: int, trials: int) -> tuple[float, float] | None:
    """The 95 % interval of a share (Wilson 1927), None where there were no trials."""
    if trials == 0:
        return None
    z, share = 1.959964, successes / trials
    middle = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # At the ends the formula gives 0 and 1 up to rounding.
    low = (middle - spread) / scale if successes else 0.0
    return low, (middle + spread) / scale if successes < trials else 1.0

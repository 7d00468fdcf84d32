"""How sure is a number? Bootstrap intervals for ratios of sums over documents.

bits per byte is Σ bits / Σ bytes over documents, and tokens of one document are no independent witnesses, so whole
documents are drawn with replacement (Efron, 1979; ratio estimator, percentile interval). The standard error is the
standard deviation of the replicates, not that divided by the root of their number. Cost: samples × documents numbers.

The percentile interval is too narrow for a handful of documents; callers say how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHUNK_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval and standard error; these are None where one observation allows none."""

    value: float
    low: float | None
    high: float | None
    standard_error: float | None
    num_observations: int


def ratio_bootstrap(
    numerators: np.ndarray, denominators: np.ndarray, num_samples: int, seed: int, level: float = 0.95
) -> Interval:
    """Σ numerators / Σ denominators with its bootstrap interval over observations.

    Raises ValueError without observations or with a denominator that is not positive.
    """
    numerators, denominators = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    num = len(numerators)
    if num == 0 or denominators.min() <= 0:
        raise ValueError(f"a ratio over {num} observations needs at least one, each with a positive denominator")
    value = float(numerators.sum() / denominators.sum())
    if num == 1:
        return Interval(value, None, None, None, 1)
    rng = np.random.default_rng(seed)
    replicates = np.empty(num_samples)
    chunk = max(1, CHUNK_NUMBERS // num)
    for begin in range(0, num_samples, chunk):
        drawn = rng.integers(0, num, size=(min(chunk, num_samples - begin), num))
        replicates[begin : begin + len(drawn)] = numerators[drawn].sum(1) / denominators[drawn].sum(1)
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), float(replicates.std(ddof=1)), num)

"""Measures the variety of a text corpus: concentration, vocabulary growth, repetition, likeness and
duplication.

All are functions of counts, of hashed units in order, or of MinHash signatures; none sees a text.

concentration      Shannon entropy in bits, its exponential as an effective number, and the
                   Herfindahl–Hirschman index Σ p².
Heaps' law         types(n) = factor · n^exponent over the first n units (Heaps 1978), fitted by
                   least squares in logarithms.
n-gram entropy     plug-in entropy with the Miller–Madow correction (1955); the entropy of an n-gram
                   less that of its first n − 1 units is what one more unit tells. Both grow with
                   the sample: compare samples of equal size only.
Vendi score        exp of the entropy of the eigenvalues of K / n (Friedman and Dieng 2023), K the
                   share of equal min-hashes: an effective number of unlike documents. An average of
                   matrices of equality, so K has no negative eigenvalue.
cluster law        P(size = s) ∝ s^−exponent from size 2 on, by maximum likelihood (Clauset, Shalizi
                   and Newman 2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_UNITS = 1000
"""Fewer units say nothing of a law of growth."""
POINTS_PER_DOUBLING = 2
LEAST_CLUSTERS = 20
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t at 97.5 % for so many groups."""
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Concentration:
    """How evenly an amount falls on labels."""

    entropy_bits: float
    effective: float
    hhi: float
    num_labels: int


def concentration(amounts: Iterable[float]) -> Concentration:
    """Of amounts by label; zeros are not labels."""
    values = np.array([a for a in amounts if a > 0], np.float64)
    if not len(values):
        return Concentration(0.0, 0.0, 0.0, 0)
    p = values / values.sum()
    entropy = float(-(p * np.log2(p)).sum())
    return Concentration(abs(entropy), 2**entropy, float((p * p).sum()), len(values))


@dataclass(frozen=True)
class Growth:
    """Types among the first units, and the fitted law."""

    curve: Sequence[tuple[int, int]]
    exponent: float | None
    factor: float | None
    r_squared: float | None


def type_growth(units: np.ndarray) -> Growth:
    """Heaps' curve and law of a stream of hashed units."""
    if not len(units):
        return Growth((), None, None, None)
    _, first = np.unique(units, return_index=True)
    first.sort()
    num_points = int(math.log2(len(units)) * POINTS_PER_DOUBLING) + 1
    points = (int(2 ** (i / POINTS_PER_DOUBLING)) for i in range(num_points))
    marks = {mark for mark in (*points, len(units)) if mark >= min(64, len(units))}
    curve = tuple((mark, int(np.searchsorted(first, mark))) for mark in sorted(marks))
    fitted = [(n, types) for n, types in curve if n >= LEAST_UNITS]
    if len(fitted) < 3:
        return Growth(curve, None, None, None)
    x, y = (np.log(np.array(side, np.float64)) for side in zip(*fitted, strict=True))
    slope, intercept = np.polyfit(x, y, 1)
    residual, spread = ((y - slope * x - intercept) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    r_squared = float(1 - residual / spread) if spread else 1.0
    return Growth(curve, float(slope), math.exp(intercept), r_squared)


def ngram_entropies(
    units: np.ndarray, begins: np.ndarray, largest_n: int = 3
) -> list[float | None]:
    """Entropy in bits of the n-grams of 1 … largest_n units within documents.

    `begins` says where each document begins and, at the end, where the last one ends.
    """
    entropies: list[float | None] = []
    document_end = np.repeat(begins[1:], np.diff(begins))
    hashes = units.astype(np.uint64)
    for n in range(1, largest_n + 1):
        if n > 1:
            # The hash of n units comes from that of the first n - 1 and from the last one.
            hashes = hashes[:-1] * np.uint64(0x9E3779B97F4A7C15) + units[n - 1 :]
            hashes ^= hashes >> np.uint64(29)
        inside = np.arange(len(hashes)) + n <= document_end[: len(hashes)]
        counts = np.unique(hashes[inside], return_counts=True)[1].astype(np.float64)
        total = counts.sum()
        if not total:
            entropies.append(None)
            continue
        plug_in = math.log2(total) - float((counts * np.log2(counts)).sum()) / total
        entropies.append(plug_in + (len(counts) - 1) / (2 * total * math.log(2)))
    return entropies


def vendi_score(signatures: np.ndarray) -> float:
    """Effective number of unlike documents among the rows of min-hashes, from 1 to their number."""
    n, num_perms = signatures.shape
    likeness = np.zeros((n, n))
    for k in range(num_perms):
        likeness += signatures[:, k, None] == signatures[None, :, k]
    eigenvalues = np.linalg.eigvalsh(likeness / (num_perms * n))
    eigenvalues = eigenvalues[eigenvalues > 1e-12]
    return float(math.exp(-(eigenvalues * np.log(eigenvalues)).sum()))


@dataclass(frozen=True)
class Spread:
    """A mean over disjoint groups with its 95 % interval (Student's t)."""

    value: float
    low: float
    high: float
    num_groups: int


def mean_of_groups(values: Sequence[float]) -> Spread | None:
    """None for fewer than two groups: one number has no interval."""
    if len(values) < 2:
        return None
    mean = float(np.mean(values))
    half = T_95.get(len(values), 1.96) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Spread(mean, mean - half, mean + half, len(values))


@dataclass(frozen=True)
class PowerLaw:
    """P(size) ∝ size^−exponent from `least` on."""

    exponent: float
    standard_error: float
    distance: float
    """Largest distance of the cumulative distributions (Kolmogorov–Smirnov)."""
    least: int
    num_clusters: int


def cluster_law(histogram: Mapping[int, int], least: int = 2) -> PowerLaw | None:
    """The law of cluster sizes, from {size: clusters}; None for too few clusters or sizes."""
    known = sorted((size, n) for size, n in histogram.items() if size >= least and n > 0)
    sizes, counts = (np.array([pair[i] for pair in known], np.float64) for i in (0, 1))
    num = counts.sum()
    if num < LEAST_CLUSTERS or len(sizes) < 2:
        return None
    mean_log = float((counts * np.log(sizes)).sum() / num)

    def loss(exponent: float) -> float:
        return math.log(_zeta(exponent, least)) + exponent * mean_log

    low, high = 1.01, 20.0
    # The loss is convex: golden section.
    while high - low > 1e-7:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    exponent = (low + high) / 2
    # The error of a maximum-likelihood estimate: the inverse root of the observed information.
    step = 1e-3
    curvature = (loss(exponent + step) - 2 * loss(exponent) + loss(exponent - step)) / step**2
    tails = np.array([_zeta(exponent, int(size) + 1) for size in sizes]) / _zeta(exponent, least)
    distance = float(np.abs((1 - tails) - np.cumsum(counts) / num).max())
    return PowerLaw(exponent, 1 / math.sqrt(num * curvature), distance, least, int(num))


def _zeta(exponent: float, start: int) -> float:
    """Hurwitz' zeta Σ (start + i)^−exponent: twenty terms and the Euler–Maclaurin rest."""
    end = start + 20
    total = math.fsum(i**-exponent for i in range(start, end))
    rest = end ** (1 - exponent) / (exponent - 1) + end**-exponent / 2
    # The first two terms with Bernoulli numbers, 1/6 and -1/30.
    rest += exponent * end ** (-exponent - 1) / 12
    return total + rest - exponent * (exponent + 1) * (exponent + 2) * end ** (-exponent - 3) / 720

"""Finds the cut-offs of scores that keep a wanted share, over all documents or over each language
for itself.

The cut that keeps a share f of n scored documents is the ceil(f n)-th best value, and whatever is
as good as it passes: with ties a little more is kept, and never a choice made among equals.
Documents without a score have no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

Best = Literal["high", "low"]
"""Which end of a score is good: a classifier's probability is better high, a perplexity low."""

WHOLE = ""
"""The group of a cut that holds for all documents."""

BUCKETS, NO_BUCKET = ("head", "middle", "tail"), "(none)"
"""What two cuts split documents into, best first, and what documents without the score are in."""


def cut_keeping(values: np.ndarray, keep_frac: float, best: Best) -> float | None:
    """The value that keeps the best `keep_frac` (above 0, at most 1) of those that are not NaN;
    None where all are NaN."""
    scored = values[~np.isnan(values)]
    if len(scored) == 0:
        return None
    # A share written as a decimal may lie a hair above what it means: 0.1 of 30 are 3.
    count = min(max(math.ceil(keep_frac * len(scored) - 1e-9), 1), len(scored))
    place = len(scored) - count if best == "high" else count - 1
    return float(np.partition(scored, place)[place])


def cuts_keeping(
    values: np.ndarray, groups: np.ndarray | None, keep_frac: float, best: Best
) -> dict[str, float]:
    """{group: cut} of groups with a score; one for all documents (`WHOLE`) without groups."""
    if groups is None:
        cut = cut_keeping(values, keep_frac, best)
        return {} if cut is None else {WHOLE: cut}
    names = np.unique(groups.astype(str)).tolist()
    found = {name: cut_keeping(values[groups == name], keep_frac, best) for name in names}
    return {name: cut for name, cut in found.items() if cut is not None}


def passing(
    values: np.ndarray, groups: np.ndarray | None, cuts: Mapping[str, float], best: Best
) -> np.ndarray:
    """Which values are at least as good as the cut of their group.

    Those without a score or a cut are not judged and pass.
    """
    names = [WHOLE] * len(values) if groups is None else map(str, groups)
    limits = np.array([cuts.get(name, np.nan) for name in names], np.float64)
    unjudged = np.isnan(values) | np.isnan(limits)
    return unjudged | (values >= limits if best == "high" else values <= limits)

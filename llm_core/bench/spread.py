"""States how far repeated measurements lie apart: percentiles of many, the extremes of few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MIN_FOR_PERCENTILES = 20
"""With fewer values, a 5th percentile is no more than a mixture of the two smallest."""

DEFINITION = (
    f"of fewer than {MIN_FOR_PERCENTILES} values the smallest and the largest, of more the 5th and"
    " 95th percentile (numpy.percentile, linear interpolation)"
)


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """{"min", "max"} of few values, {"p05", "p95"} of many."""
    if len(values) < MIN_FOR_PERCENTILES:
        return {"min": float(np.min(values)), "max": float(np.max(values))}
    p05, p95 = np.percentile(values, [5, 95])
    return {"p05": float(p05), "p95": float(p95)}

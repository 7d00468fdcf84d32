"""Cuts that keep a share, over all documents or each language for itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.corpus.score_cuts import WHOLE, cut_keeping, cuts_keeping, passing

VALUES = st.lists(st.one_of(st.just(math.nan), st.integers(0, 20).map(float)), max_size=60).map(
    np.array
)


@pytest.mark.parametrize("best", ["high", "low"])
@given(VALUES, st.floats(0.01, 1))
def test_at_least_the_share_passes_and_no_more_than_ties_force(
    best, values: np.ndarray, frac: float
) -> None:
    scored = values[~np.isnan(values)] if len(values) else values
    cut = cut_keeping(np.asarray(values, float), frac, best)
    assert (cut is None) == (len(scored) == 0)
    if cut is None:
        return
    kept = scored >= cut if best == "high" else scored <= cut
    strictly = scored > cut if best == "high" else scored < cut
    assert kept.sum() >= frac * len(scored) - 1e-6 and strictly.sum() < frac * len(scored)


def test_a_decimal_share_is_what_it_says() -> None:
    assert cut_keeping(np.arange(30.0), 0.1, "high") == 27.0


def test_each_group_is_cut_for_itself_and_what_has_no_score_passes() -> None:
    values = np.array([1.0, 2, 3, 4, 10, 20, 30, 40, math.nan])
    groups = np.array(["a"] * 4 + ["b"] * 4 + ["a"], object)
    cuts = cuts_keeping(values, groups, 0.5, "low")
    assert cuts == {"a": 2.0, "b": 20.0}
    assert passing(values, groups, cuts, "low").tolist() == [True, True, False, False] * 2 + [True]
    assert cuts_keeping(values, None, 0.5, "high") == {WHOLE: 10.0}
    assert passing(values, None, {WHOLE: 10.0}, "high").sum() == 5
    assert passing(values, np.array(["c"] * 9, object), cuts, "high").all(), (
        "a group without a cut is not judged"
    )

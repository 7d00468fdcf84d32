"""A night that is like the one before raises no alarm, and one that is not does at once."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.analysis.drift import DriftConfig, compare_distributions

CONFIG = DriftConfig()


def night(rng: np.random.Generator, documents: int) -> dict[str, Any]:
    """Measures as a corpus has them: long tails, many ties, mostly zeros, rare labels."""
    return {
        "num_bytes": rng.lognormal(7, 1.2, documents).round(),
        "num_lines": rng.poisson(3, documents).astype(float),
        "dup_line_frac": np.where(rng.random(documents) < 0.95, 0.0, rng.random(documents)),
        **{f"feature_{i}": rng.normal(0, 1, documents) for i in range(30)},
        "language": rng.choice(
            ["en", "de", "fr", "ja", "gd"], documents, p=[0.6, 0.2, 0.1, 0.09, 0.01]
        ).tolist(),
        "personal data": rng.choice(
            ["none", "EMAIL", "PHONE"], documents, p=[0.95, 0.04, 0.01]
        ).tolist(),
    }


def drifts(new: dict[str, Any], before: dict[str, Any]) -> set[str]:
    return {row["measure"] for row in compare_distributions(new, before, CONFIG) if row["drifts"]}


@pytest.mark.parametrize("documents", [50, 200, 5000])
def test_no_alarm_in_twenty_shuffled_nights(documents: int) -> None:
    rng = np.random.default_rng(documents)
    alarms = [drifts(night(rng, documents), night(rng, 3000)) for _ in range(20)]
    assert alarms == [set()] * 20


@pytest.mark.parametrize("documents", [100, 5000])
@pytest.mark.parametrize(
    ("measure", "shift"),
    [
        ("num_bytes", lambda v, rng: v * 2),
        ("feature_7", lambda v, rng: v + 1.0),
        ("dup_line_frac", lambda v, rng: np.where(rng.random(len(v)) < 0.4, 0.5, v)),
        ("language", lambda v, rng: ["de" if rng.random() < 0.4 else one for one in v]),
        ("personal data", lambda v, rng: ["EMAIL" if rng.random() < 0.3 else one for one in v]),
    ],
)
def test_a_planted_shift_is_found_on_the_first_night_and_nothing_else(
    measure: str, shift: Any, documents: int
) -> None:
    rng = np.random.default_rng(1)
    new, before = night(rng, documents), night(rng, 3000)
    assert drifts(new | {measure: shift(new[measure], rng)}, before) == {measure}


def test_a_difference_that_is_certain_but_small_is_no_drift() -> None:
    rng = np.random.default_rng(2)
    new, before = ({"x": rng.normal(m, 1, 200_000)} for m in (0.0, 0.05))
    (row,) = compare_distributions(new, before, CONFIG)
    assert row["p_adjusted"] < 1e-9 and row["effect"] < 0.1 and not row["drifts"]


def test_a_large_difference_of_few_documents_is_no_drift() -> None:
    new, before = {"x": np.arange(4.0)}, {"x": np.arange(4.0) + 2}
    (row,) = compare_distributions(new, before, CONFIG)
    assert row["effect"] >= 0.5 and not row["drifts"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
)
def test_the_effect_of_numbers_is_the_largest_distance_of_their_distributions(
    a: list[float], b: list[float]
) -> None:
    (row,) = compare_distributions({"x": np.array(a)}, {"x": np.array(b)}, CONFIG)
    by_hand = max(
        abs(sum(x <= t for x in a) / len(a) - sum(x <= t for x in b) / len(b)) for t in (*a, *b)
    )
    assert math.isclose(row["effect"], by_hand, abs_tol=1e-12)


LABELS = st.lists(st.sampled_from("abcdefg"), max_size=60)


@settings(max_examples=60, deadline=None)
@given(LABELS, LABELS)
def test_the_effect_of_labels_is_the_share_that_would_have_to_change(
    a: list[str], b: list[str]
) -> None:
    (row,) = compare_distributions({"x": a}, {"x": b}, CONFIG)
    (mirrored,) = compare_distributions({"x": b}, {"x": a}, CONFIG)
    assert 0 <= row["effect"] <= 1 and 0 <= row["p"] <= 1
    assert math.isclose(row["effect"], mirrored["effect"]) and row["p"] == mirrored["p"]
    if a and b:
        shared = sum(min(Counter(a)[k] / len(a), Counter(b)[k] / len(b)) for k in "abcdefg")
        assert math.isclose(row["effect"], 1 - shared, abs_tol=1e-9)


def test_disjoint_labels_have_an_effect_of_one_and_no_more() -> None:
    (row,) = compare_distributions({"x": ["d"]}, {"x": list("aaaaaacebb")}, CONFIG)
    assert row["effect"] == 1.0


def test_holm_adjusts_over_all_tests_and_p_values_without_numbers_are_one() -> None:
    rng = np.random.default_rng(3)
    one = {"x": rng.normal(0, 1, 60)}, {"x": rng.normal(0.6, 1, 60)}
    (alone,) = compare_distributions(*one, CONFIG)
    many = [side | {f"n{i}": np.zeros(5) for i in range(9)} for side in one]
    among = {row["measure"]: row for row in compare_distributions(*many, CONFIG)}
    assert math.isclose(among["x"]["p_adjusted"], 10 * alone["p_adjusted"])
    (empty,) = compare_distributions({"x": np.array([np.nan])}, {"x": np.zeros(5)}, CONFIG)
    assert (empty["p"], empty["effect"], empty["new"]) == (1.0, 0.0, {})

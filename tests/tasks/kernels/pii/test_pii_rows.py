"""Rows of candidates that come again are known, in whatever order they come."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.definitions import pii_kinds as kinds
from tasks.kernels.pii.rows import are_new, keys_of, of_kind

ROW = st.tuples(
    st.just(0),
    st.integers(0, 40),
    st.integers(41, 43),
    st.sampled_from([kinds.PHONE, kinds.IP6]),
    st.integers(0, 1),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(ROW, st.booleans()), max_size=40), st.lists(ROW, max_size=40))
def test_rows_are_new_unless_they_were_turned_down(before, after) -> None:
    rows = np.array([row for row, _ in before], np.int64).reshape(-1, 5)
    passed = np.array([verdict for _, verdict in before], np.bool_)
    again = np.array(after, np.int64).reshape(-1, 5)

    down = {row[:4] for row, verdict in before if not verdict}
    assert are_new(again, np.sort(keys_of(rows, passed))).tolist() == [
        row[:4] not in down for row in after
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(ROW, st.booleans()), max_size=40))
def test_rows_of_a_kind_are_those_that_passed(before) -> None:
    rows = np.array([row for row, _ in before], np.int64).reshape(-1, 5)
    places, values = of_kind(
        rows, np.array([verdict for _, verdict in before], np.bool_), kinds.PHONE
    )
    expected = [
        (place, row[4])
        for place, (row, verdict) in enumerate(before)
        if verdict and row[3] == kinds.PHONE
    ]
    assert list(zip(places.tolist(), values.tolist(), strict=True)) == expected

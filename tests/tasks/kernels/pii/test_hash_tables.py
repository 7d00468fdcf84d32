"""Tables give the value of each key that they were made of, and no other."""

from __future__ import annotations

import numba
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.pii.hash_tables import VALUE_BITS, hash_table, looked_up
from tasks.kernels.text.addresses import pointers

SLOT_BITS = 6
KEYS = st.integers(0, 40) | st.integers(0, 2**47 - 1)


@numba.njit
def _look_up(table: np.ndarray, key: int) -> int:  # type: ignore[no-untyped-def]
    return looked_up(pointers(table), key, SLOT_BITS)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(KEYS, st.integers(0, 2**VALUE_BITS - 1), max_size=2**SLOT_BITS // 2),
    st.lists(KEYS, max_size=40),
)
def test_table_has_its_keys_alone(values: dict[int, int], others: list[int]) -> None:
    table = hash_table(values, SLOT_BITS)
    for key in (*values, *others):
        assert _look_up(table, key) == values.get(key, -1)

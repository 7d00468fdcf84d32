"""Looks numbers up in open hash tables that are made once, in place of a search.

Key and value lie in one number, the value in its lowest VALUE_BITS; -1 is an empty slot. Slots are
at most half full, so a look-up reads one or two of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tasks.kernels import inner

VALUE_BITS = 16
_MIXER, _WORD_BITS = 0x9E3779B97F4A7C15, 64


def hash_table(values: Mapping[int, int], slot_bits: int) -> np.ndarray:
    """The table of keys below 2^47 and values below 2^16, int64[2^slot_bits], for `looked_up`."""
    assert 2 * len(values) <= 1 << slot_bits, (len(values), slot_bits)
    table = np.full(1 << slot_bits, -1, np.int64)
    for key, value in values.items():
        slot = (key * _MIXER & 2**_WORD_BITS - 1) >> (_WORD_BITS - slot_bits)
        while table[slot] >= 0:
            slot = (slot + 1) % len(table)
        table[slot] = key << VALUE_BITS | value
    table.flags.writeable = False
    return table


@inner
def looked_up(table: np.ndarray, key: int, slot_bits: int) -> int:
    """The value of a key in a table of 2^slot_bits slots, or -1."""
    slot = np.int64((np.uint64(key) * np.uint64(_MIXER)) >> np.uint64(_WORD_BITS - slot_bits))
    while table[slot] >= 0:
        if table[slot] >> VALUE_BITS == key:
            return table[slot] & ((1 << VALUE_BITS) - 1)
        slot = (slot + 1) & ((1 << slot_bits) - 1)
    return -1

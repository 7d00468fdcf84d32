"""Recognises the shape of a row of digit groups: the sizes of the groups as one number, and a table
to look it up.

212-555-0199 has the shape 3, 3, 4: five bits each, the last group lowest.
"""

from __future__ import annotations

import numpy as np

from tasks.definitions import pii_kinds as kinds
from tasks.kernels import inner

SIZE_BITS = 5
SHAPE_SLOTS = 1 << 12
_SHAPE_MIXER, _SLOT_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(64 - 12)


def shape_of(*sizes: int) -> int:
    """The code of a row of groups of these sizes."""
    code = 0
    for size in sizes:
        code = (code << SIZE_BITS) | size
    return code


def shape_table(shapes: np.ndarray) -> np.ndarray:
    """Where each of at most MAX_PHONE_SHAPES shapes stands first, for `shape_number`: one look-up
    in place of a search.

    An open hash table: shape and place in one number, -1 where there is none.
    """
    table = np.full(SHAPE_SLOTS, -1, np.int64)
    for number, shape in enumerate(shapes.tolist()):
        slot = (shape * int(_SHAPE_MIXER) & 2**64 - 1) >> int(_SLOT_SHIFT)
        while table[slot] >= 0 and table[slot] >> kinds.SHAPE_BITS != shape:
            slot = (slot + 1) % SHAPE_SLOTS
        if table[slot] < 0:
            table[slot] = shape << kinds.SHAPE_BITS | number
    table.flags.writeable = False
    return table


@inner
def shape_number(table: np.ndarray, shape: int) -> int:
    """The first place of this shape among the shapes of a `shape_table`, or -1."""
    slot = np.int64((np.uint64(shape) * _SHAPE_MIXER) >> _SLOT_SHIFT)
    while table[slot] >= 0:
        if table[slot] >> kinds.SHAPE_BITS == shape:
            return table[slot] & (kinds.MAX_PHONE_SHAPES - 1)
        slot = (slot + 1) & (SHAPE_SLOTS - 1)
    return -1

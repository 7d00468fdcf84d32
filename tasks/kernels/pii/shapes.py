"""Recognises the shape of a row of digit groups: the sizes of the groups as one number.

212-555-0199 has the shape 3, 3, 4: five bits each, the last group lowest.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.hash_tables import hash_table, looked_up

SIZE_BITS = 5
_SLOT_BITS = 12


def shape_of(*sizes: int) -> int:
    """The code of a row of groups of these sizes."""
    code = 0
    for size in sizes:
        code = (code << SIZE_BITS) | size
    return code


def shape_table(shapes: np.ndarray) -> np.ndarray:
    """Where each shape stands first among at most 2048, for `shape_number`."""
    first: dict[int, int] = {}
    for number, shape in enumerate(shapes.tolist()):
        first.setdefault(shape, number)
    return hash_table(first, _SLOT_BITS)


@inner
def shape_number(table: np.ndarray, shape: int) -> int:
    """The first place of this shape among the shapes of a `shape_table`, or -1."""
    return looked_up(table, shape, _SLOT_BITS)

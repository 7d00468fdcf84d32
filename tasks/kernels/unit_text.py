"""What does a model of words read? The units of a text with one space between them, so that every script has words.

Units are those of `tasks.kernels.chars`: words, and single letters in scripts written without spaces. Everything else is left
out. The bytes of a unit stay as they are: whoever wants them folded folds the text before.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels.chars import char_classes, fold_table, next_unit


def spaced_units(text: bytes) -> bytes:
    """The units of a UTF-8 text, joined by spaces."""
    out = np.empty(2 * len(text) + 1, np.uint8)
    size = _join_units(np.frombuffer(text, np.uint8), char_classes(), fold_table(), out)
    return out[:size].tobytes()


@njit(cache=True, nogil=True)
def _join_units(buf, classes, folds, out):  # type: ignore[no-untyped-def]
    size, pos, end = 0, 0, buf.size
    while True:
        start, stop, _ = next_unit(buf, pos, end, classes, folds)
        if start == end:
            return size
        if size:
            out[size] = 0x20
            size += 1
        for i in range(start, stop):
            out[size] = buf[i]
            size += 1
        pos = stop

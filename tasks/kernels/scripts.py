"""How many letters of each script does the beginning of each text have?

In: Arrow buffers. Out: counts by tasks.scripts.SCRIPTS. Cost: one decode per character of the prefix.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from tasks.kernels.chars import NUM_CODE_POINTS, decode
from tasks.scripts import RANGES, SCRIPTS


@lru_cache(maxsize=1)
def script_table() -> np.ndarray:
    """The script of every code point, uint8[0x110000]; 0 where it is a letter of none."""
    table = np.zeros(NUM_CODE_POINTS, np.uint8)
    for first, last, script in RANGES:
        table[first : last + 1] = SCRIPTS.index(script)
    table[[0xD7, 0xF7]] = 0  # the signs of multiplication and division, among the Latin letters
    table.setflags(write=False)
    return table


def count_scripts(buf: np.ndarray, offsets: np.ndarray, max_chars: int) -> np.ndarray:
    """int32[documents, len(SCRIPTS)]: characters of each script among the first `max_chars` of each text."""
    counts = np.zeros((len(offsets) - 1, len(SCRIPTS)), np.int32)
    _count(buf, offsets, max_chars, script_table(), counts.reshape(-1), len(SCRIPTS), SCRIPTS.index("LATIN"))
    return counts


@njit(cache=True, nogil=True)
def _count(buf, offsets, max_chars, table, counts, num_scripts, latin):  # type: ignore[no-untyped-def]
    for d in range(len(offsets) - 1):
        pos, end, left = offsets[d], offsets[d + 1], max_chars
        row, ascii_letters, ascii_others = d * num_scripts, 0, 0
        while pos < end and left > 0:
            if buf[pos] < 0x80:  # these letters are of one script and counted in a register
                is_letter = 1 if table[buf[pos]] else 0
                ascii_letters += is_letter
                ascii_others += 1 - is_letter
                pos += 1
            else:
                char, pos = decode(buf, pos, end)
                counts[row + np.int64(table[char])] += 1
            left -= 1
        counts[row] += ascii_others
        counts[row + latin] += ascii_letters

"""Counts the letters of each script at the beginning of each text.

In: Arrow buffers. Out: counts by tasks.definitions.scripts.SCRIPTS. Cost: one decode per character
of the prefix, ASCII eight at a time.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from tasks.definitions.scripts import RANGES, SCRIPTS
from tasks.kernels.text.addresses import load_word, pointers
from tasks.kernels.text.bitmaps import count_ones, trailing_zeros
from tasks.kernels.text.chars import NUM_CODE_POINTS, decode

_NUM_SCRIPTS, _LATIN = len(SCRIPTS), SCRIPTS.index("LATIN")
_HIGH, _EACH = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101)
_SMALL = np.uint64(0x20) * _EACH
# Added to a byte of ASCII they set its high bit from `a` on, and from behind `z` on.
_BEFORE_A, _BEHIND_Z = np.uint64(0x80 - 0x61) * _EACH, np.uint64(0x80 - 0x7B) * _EACH


@lru_cache(maxsize=1)
def script_table() -> np.ndarray:
    """The script of every code point, uint8[0x110000]; 0 where it is a letter of none."""
    table = np.zeros(NUM_CODE_POINTS, np.uint8)
    for first, last, script in RANGES:
        table[first : last + 1] = SCRIPTS.index(script)
    table[[0xD7, 0xF7]] = 0  # the signs of multiplication and division, among the Latin letters
    table.setflags(write=False)
    return table


def count_scripts(
    buf: np.ndarray, offsets: np.ndarray, max_chars: int
) -> tuple[np.ndarray, np.ndarray]:
    """int32[documents, len(SCRIPTS)]: characters of each script among the first `max_chars` of each
    text, and where those end."""
    counts = np.zeros((len(offsets) - 1, len(SCRIPTS)), np.int32)
    ends = np.zeros(len(offsets) - 1, np.int64)
    _count(buf, offsets, max_chars, script_table(), counts.reshape(-1), ends)
    return counts, ends


@njit(cache=True, nogil=True)
def _count(buf, offsets, max_chars, table, counts, ends):  # type: ignore[no-untyped-def]
    text, scripts, counted = pointers((buf, table, counts))
    size = np.int64(buf.size)
    for d in range(len(offsets) - 1):
        pos, end, left = np.int64(offsets[d]), np.int64(offsets[d + 1]), np.int64(max_chars)
        row, ascii_letters, ascii_others = d * _NUM_SCRIPTS, np.int64(0), np.int64(0)
        while pos < end and left > 0:
            if text[pos] >= 0x80:
                char, pos = decode(text, pos, end)
                counted[row + np.int64(scripts[char])] += 1
                left -= 1
            elif pos + 8 <= size:  # letters of ASCII are of one script and counted in a register
                eight = load_word(text, pos)
                num = min(trailing_zeros(eight & _HIGH) >> 3, end - pos, left)
                low = (eight & ~_HIGH) | _SMALL
                letters = (low + _BEFORE_A) & ~(low + _BEHIND_Z) & _HIGH
                found = count_ones(letters << np.uint64(64 - 8 * num))
                ascii_letters += found
                ascii_others += num - found
                pos += num
                left -= num
            else:
                is_letter = np.int64(scripts[text[pos]] != 0)
                ascii_letters += is_letter
                ascii_others += 1 - is_letter
                pos += 1
                left -= 1
        counted[row] += ascii_others
        counted[row + _LATIN] += ascii_letters
        ends[d] = pos

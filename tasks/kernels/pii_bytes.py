"""What is a byte of text, and which short word stands here? Shared by the detectors of personal data.

Words are compared as integers of their last eight letters: strings would compile all of Numba's string support.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

DIGIT, ALPHA, LOCAL, HEX = 1, 2, 4, 8
_CLASS = np.zeros(256, np.uint8)
_CLASS[ord("0") : ord("9") + 1] = DIGIT | LOCAL | HEX
_CLASS[ord("a") : ord("z") + 1] = ALPHA | LOCAL
_CLASS[ord("A") : ord("Z") + 1] = ALPHA | LOCAL
_CLASS[ord("a") : ord("f") + 1] |= HEX
_CLASS[ord("A") : ord("F") + 1] |= HEX
for _c in "._%+-'":
    _CLASS[ord(_c)] |= LOCAL


def packed(words: str) -> np.ndarray:
    """The last eight letters of words as integers, to be found without strings."""
    return np.array([int.from_bytes(word.encode()[-8:], "big") for word in words.split()], np.uint64)


# Helpers are called from compiled code alone: without entry points for Python they compile in half the time.
_HELPER: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
helper = numba.njit(**_HELPER)


@helper
def is_any(c: int, mask: int) -> bool:
    """Is byte c of one of the classes in the mask?"""
    return (_CLASS[c] & mask) != 0


@helper
def contains(words: np.ndarray, word: np.uint64) -> bool:
    for known in words:  # noqa: SIM110 (a generator does not compile; a few dozen words, asked for once in a candidate)
        if known == word:
            return True
    return False


@helper
def pack(v: np.ndarray, start: int, end: int) -> np.uint64:
    """The last eight bytes of v[start:end] as one integer, letters in lower case."""
    word = np.uint64(0)
    for i in range(start, end):
        word = (word << np.uint64(8)) | np.uint64(v[i] | 32 if is_any(v[i], ALPHA) else v[i])
    return word


@helper
def digits_end(v: np.ndarray, i: int, hi: int, most: int) -> int:
    """End of the digits at i, of which at most one more than `most` are read."""
    j = i
    while j < hi and j - i <= most and is_any(v[j], DIGIT):
        j += 1
    return j

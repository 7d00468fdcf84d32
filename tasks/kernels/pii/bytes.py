"""Classifies bytes of text and finds the word at a place, for the detectors of personal data.

Words are compared as integers of their last eight letters: strings would compile all of Numba's
string support.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner

DIGIT, ALPHA, LOCAL, HEX, UPPER, TOKEN, INNER = (1 << i for i in range(7))
ALNUM = DIGIT | ALPHA


def _classes() -> np.ndarray:
    digits, lower = b"0123456789", b"abcdefghijklmnopqrstuvwxyz"
    upper = lower.upper()
    table = np.zeros(256, np.uint8)
    for mask, members in (
        (DIGIT, digits),
        (ALPHA, lower + upper),
        (LOCAL, digits + lower + upper + b"._%+-'"),
        (HEX, digits + b"abcdefABCDEF"),
        (UPPER, upper),
        (TOKEN, digits + lower + upper + b"_-"),
        (INNER, b"._"),  # a digit behind one of these begins no number
    ):
        table[list(members)] |= mask
    return table


CLASS = _classes()


def packed(words: str) -> np.ndarray:
    """The last eight letters of words as integers, to be found without strings."""
    return np.array(
        [int.from_bytes(word.encode()[-8:], "big") for word in words.split()], np.uint64
    )


@inner
def is_any(c: int, mask: int) -> bool:
    """Whether byte c is of one of the classes in the mask."""
    return (CLASS[c] & mask) != 0


@inner
def contains(words: np.ndarray, word: np.uint64) -> bool:
    for known in words:  # noqa: SIM110 (a generator does not compile; a few dozen words, asked for once in a candidate)
        if known == word:
            return True
    return False


@inner
def pack(v: np.ndarray, start: int, end: int) -> np.uint64:
    """The last eight bytes of v[start:end] as one integer, letters in lower case."""
    word = np.uint64(0)
    for i in range(start, end):
        word = (word << np.uint64(8)) | np.uint64(v[i] | 32 if is_any(v[i], ALPHA) else v[i])
    return word


@inner
def all_of(v: np.ndarray, start: int, end: int, mask: int) -> bool:
    """Whether all bytes of v[start:end] are of one of the classes; not where there are none."""
    for i in range(start, end):
        if not is_any(v[i], mask):
            return False
    return end > start

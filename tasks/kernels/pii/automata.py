"""Walks the automata of number plans (`tasks.pii.digit_classes`): ten entries a state, the next
one for each digit."""

from __future__ import annotations

import numba
import numpy as np

MAX_DIGITS = 19
"""Of an int64."""


@numba.njit(cache=True, nogil=True, error_model="numpy")
def walk(
    numbers: np.ndarray, first: int, num_digits: int, following: np.ndarray, reached: np.ndarray
) -> tuple[int, int]:
    """Write where the last digits (so many, at most `MAX_DIGITS`) of numbers (int64, from place
    `first` on) lead, ten times the state, into `reached`.

    following: int32, ten times the next state at ten times a state plus a digit, or -1. Returns the
    place of the first number that comes upon -1, and where in `following` that is; else the count
    of numbers and -1.
    """
    digits, ten = np.empty(MAX_DIGITS, np.int64), np.uint64(10)
    for r in range(first, len(numbers)):
        rest = np.uint64(numbers[r])
        for place in range(num_digits):
            head = rest // ten
            digits[place] = np.int64(rest - ten * head)
            rest = head
        tens = np.int64(0)
        for place in range(num_digits - 1, -1, -1):
            step = tens + digits[place]
            tens = np.int64(following[step])
            if tens < 0:
                return r, int(step)
        reached[r] = tens
    return len(numbers), -1

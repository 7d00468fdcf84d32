"""Walks the automata of number plans (`tasks.pii.digit_classes`): a state has ten entries, the next
state for each digit."""

from __future__ import annotations

import numba
import numpy as np

MAX_DIGITS = 19
"""Of an int64."""
THREE = 3
"""Digits that are taken from a number at once, so that fewer divisions wait for one another."""


@numba.njit(cache=True, nogil=True, error_model="numpy")
def walk(
    numbers: np.ndarray, first: int, num_digits: int, following: np.ndarray, reached: np.ndarray
) -> tuple[int, int]:
    """Write the state to which the last `num_digits` digits of each number lead, times ten, into
    `reached`. numbers: int64, read from place `first` on. num_digits: at most `MAX_DIGITS`.

    following: int32; at ten times a state plus a digit, ten times the next state, or -1: not made
    yet. Returns the place of the first number that meets a -1, and the place of that in
    `following`; else the count of numbers, and -1.
    """
    digits, thousand, ten = np.empty(MAX_DIGITS + THREE, np.int64), np.uint64(1000), np.uint64(10)
    for r in range(first, len(numbers)):
        rest = np.uint64(numbers[r])
        for place in range(0, num_digits, THREE):
            head = rest // thousand
            last = rest - thousand * head
            middle = last // ten
            digits[place] = np.int64(last - ten * middle)
            digits[place + 1] = np.int64(middle % ten)
            digits[place + 2] = np.int64(middle // ten)
            rest = head
        tens = np.int64(0)
        for place in range(num_digits - 1, -1, -1):
            step = tens + digits[place]
            tens = np.int64(following[step])
            if tens < 0:
                return r, int(step)
        reached[r] = tens
    return len(numbers), -1

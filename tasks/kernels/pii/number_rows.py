"""Tells which rows of digit groups are dates, years, versions or parts of dumps, and so no numbers
of telephones. Each judge looks at the groups that it is given alone."""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, DIGIT, HEX, is_any
from tasks.kernels.pii.groups import END, SHAPE, value_of
from tasks.kernels.pii.shapes import SIZE_BITS, shape_of

DATES = (shape_of(4, 2, 2), shape_of(2, 2, 4), shape_of(4, 4))
DAY = shape_of(8)
_DATE_SIZES = (1 << 3 * SIZE_BITS) - 1
"""The bits of the last three groups in a shape."""
_CODE, _LAST_SIZE = shape_of(1, 4), (1 << SIZE_BITS) - 1


@inner
def is_version(groups: np.ndarray, k: int) -> bool:
    """Whether these groups between dots have none of four digits, or one of a single digit behind
    the first, or four behind one: 1.1805.40.00 is a code of services."""
    longest, shape = np.int64(0), groups[SHAPE + k]
    if k > 1 and groups[SHAPE + 1] == _CODE:
        return True
    for _ in range(k):
        size = shape & _LAST_SIZE
        if size == 1:
            return True
        longest, shape = max(longest, size), shape >> SIZE_BITS
    return k == 3 and max(longest, shape) < 4


@inner
def holds_a_date(v: np.ndarray, i: int, groups: np.ndarray, k: int) -> bool:
    """Whether three of more groups are a day: 2005-03-23 23 goes on with a clock, and a number of a
    row stands before 27  2008-06-20 or 202 18/11/2020."""
    for n in range(k - 2 if k > 2 else 0):
        sizes = groups[SHAPE + n + 3] & _DATE_SIZES
        dated = sizes == DATES[0] or sizes == DATES[1]
        if dated and is_date(v, groups[END + n], groups[END + n + 3], sizes):
            return True
    return k > 2 and is_date(v, i, groups[END + 2], groups[SHAPE + 2])


@inner
def is_in_a_dump(v: np.ndarray, hi: int, end: int) -> bool:
    """Whether one of the next two pairs of hexadecimal digits has a letter and a digit, as in
    05 34 15 98 97 e8 06."""
    for _ in range(2):
        if (
            end + 3 > hi
            or v[end] != 32
            or not (is_any(v[end + 1], HEX) and is_any(v[end + 2], HEX))
        ):
            return False
        end += 3
        if end < hi and is_any(v[end], ALNUM):
            return False
        if is_any(v[end - 2], DIGIT) != is_any(v[end - 1], DIGIT):
            return True
    return False


@inner
def counts_up(v: np.ndarray, i: int, groups: np.ndarray, k: int) -> bool:
    """Whether each of at least four groups is one more than the last: 01 02 03 04 05."""
    if k < 3:
        return False
    last = value_of(v, i, groups[END])
    for n in range(1, k + 1):
        value = value_of(v, groups[END + n - 1], groups[END + n])
        if value != last + 1:
            return False
        last = value
    return True


@inner
def is_a_row_of_digits(v: np.ndarray, i: int, end: int) -> bool:
    """Whether each digit is one more than the last: 0123456789."""
    for j in range(i + 1, end):  # noqa: SIM110 (a generator does not compile)
        if v[j] != v[j - 1] + 1:
            return False
    return True


@inner
def are_years(v: np.ndarray, first_end: int, end: int) -> bool:
    """Whether the four digits before each place are years."""
    first, last = value_of(v, first_end - 4, first_end), value_of(v, end - 4, end)
    return 1800 <= first < 2100 and 1800 <= last < 2100


@inner
def is_date(v: np.ndarray, i: int, end: int, shape: int) -> bool:
    """Whether these groups are a day or two years."""
    value = value_of(v, i, end)
    if shape == DATES[1]:
        day, month, year = value // 1_000_000, value // 10_000 % 100, value % 10_000
        return 1800 <= year < 2100 and 1 <= min(day, month) <= 12 and max(day, month) <= 31
    year, rest = value // 10_000, value % 10_000
    if year < 1800 or year >= 2100:
        return False
    if shape == DATES[2] and 1800 <= rest < 2100:
        return True
    month, day = rest // 100, rest % 100
    return (shape == DATES[0] or shape == DAY) and 1 <= month <= 12 and 1 <= day <= 31

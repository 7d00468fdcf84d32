"""Reads rows of digit groups, and what stands around them.

212-555-0199 is a row of three groups. A row is read once into columns, and judges of numbers ask
for shapes: how many digits each group has and what stands between.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inlined, inner
from tasks.kernels.pii.bytes import ALNUM, DIGIT, is_any
from tasks.kernels.pii.shapes import SIZE_BITS

MAX_PHONE_BYTES = 40
MAX_GROUPS = 8
MAX_DIGITS = 19
MAX_ONES = 3
"""More groups of one digit are a row of digits, not a number."""

END, DIGITS, SHAPE, SIGNS, GROUP_NUMBERS = (MAX_GROUPS * column for column in range(5))
"""Where the columns of a row of groups begin, a number per group in each: where it ends; digits and
sizes so far (five bits each); bits of the separators so far."""
BLANK, HYPHEN, DOT, SLASH, OTHER = 1, 2, 4, 8, 16

_SEPARATOR = np.zeros(256, np.int64)
_SEPARATOR[list(b" -./()")] = BLANK, HYPHEN, DOT, SLASH, OTHER, OTHER


@inlined
def read_groups(v: np.ndarray, i: int, hi: int, groups: np.ndarray, most_mixed: int) -> int:
    """Read the digit groups from i, with one or two separators between; how many there are.

    most_mixed: digits of the longest telephone number that may begin here. Nothing else has so many
    and separators of two kinds, so a longer row is not read to its end.
    """
    count, digits, shape, signs, separator, ones = 0, 0, 0, 0, 0, 0
    limit = min(hi, i + MAX_PHONE_BYTES)
    while count < MAX_GROUPS:
        j, most = i, min(limit, i + MAX_DIGITS + 1)
        while j < most and is_any(v[j], DIGIT):
            j += 1
        digits += j - i
        ones += j - i == 1
        if j == i or digits > MAX_DIGITS or ones > MAX_ONES or (j == limit and limit < hi):
            break
        signs |= separator
        if digits > most_mixed and signs & (signs - 1) != 0:
            break
        shape = (shape << SIZE_BITS) | (j - i)
        groups[END + count] = j
        groups[DIGITS + count] = digits
        groups[SHAPE + count] = shape
        groups[SIGNS + count] = signs
        count += 1
        if j == limit:
            break
        separator, size = _separator(v, j, limit)
        if size == 0:
            break
        i = j + size
        if i < limit and not is_any(v[i], DIGIT):
            code, size = _separator(v, i, limit)
            separator |= code | (OTHER if code > 0 else 0)
            i += size
    return count


@inner
def value_of(v: np.ndarray, i: int, end: int) -> int:
    """The digits from i to `end` as one number."""
    value = 0
    for j in range(i, end):
        if is_any(v[j], DIGIT):
            value = value * 10 + (v[j] - np.int64(48))
    return value


@inlined
def may_begin(v: np.ndarray, lo: int, hi: int, i: int, end: int) -> bool:
    """Whether a long number may begin with the digits from i to end. Quick, and rather yes than no.

    It has more than seven digits at once, or others follow, with one or two separators between.
    What stands behind a hyphen or slash is the middle of something, and so is what stands in a row
    of numbers with blanks between.
    """
    if i - 1 > lo and (v[i - 1] == 45 or v[i - 1] == 47) and is_any(v[i - 2], ALNUM):
        return False
    if end + 1 >= hi:
        return end - i > 7
    if v[end] == 32 and is_any(v[end + 1], DIGIT) and numbers_before(v, lo, i) > 1:
        return False
    if end - i > 7:
        return True
    if v[end] < 0xC2 and _SEPARATOR[v[end]] == 0:
        return i > lo and v[i - 1] == 43
    return is_any(v[end + 1], DIGIT) or v[end + 1] >= 0x80 or _SEPARATOR[v[end + 1]] != 0


@inlined
def _separator(v: np.ndarray, i: int, hi: int) -> tuple[int, int]:
    """Code and bytes of one separator inside numbers at i, or zeros: blanks, hyphens, dot, slash,
    parentheses."""
    code = _SEPARATOR[v[i]]
    if code > 0:
        return code, 1
    if v[i] == 0xC2 and i + 1 < hi and v[i + 1] == 0xA0:
        return OTHER, 2
    if v[i] == 0xE2 and i + 2 < hi and v[i + 1] == 0x80 and 0x90 <= v[i + 2] <= 0x93:
        return OTHER, 3
    return 0, 0


@inner
def numbers_before(v: np.ndarray, lo: int, i: int) -> int:
    """How many groups of digits, at most two, stand before i with a blank between."""
    count = 0
    while count < 2 and i - 2 >= lo and v[i - 1] == 32 and is_any(v[i - 2], DIGIT):
        i -= 1
        limit = max(lo, i - 20)
        while i > limit and is_any(v[i - 1], DIGIT):
            i -= 1
        count += 1
    return count


@inner
def numbers_after(v: np.ndarray, hi: int, end: int) -> int:
    """How many groups of digits, at most two, stand after `end` with a blank between."""
    count = 0
    while count < 2 and end + 1 < hi and v[end] == 32 and is_any(v[end + 1], DIGIT):
        end += 1
        limit = min(hi, end + 20)
        while end < limit and is_any(v[end], DIGIT):
            end += 1
        count += 1
    return count


@inner
def is_free(v: np.ndarray, lo: int, hi: int, start: int, end: int) -> bool:
    """Whether this stands alone, and is not part of a longer name, code, decimal or path."""
    if end < hi:
        c = v[end]
        joins = c == 46 or c == 45 or c == 47
        if is_any(c, ALNUM) or c == 95 or (joins and end + 1 < hi and is_any(v[end + 1], ALNUM)):
            return False
    if start > lo:
        c = v[start - 1]
        if is_any(c, ALNUM) or c == 46 or c == 95 or c == 43 or c == 47:
            return False
        if c == 45 and start - 1 > lo and is_any(v[start - 2], ALNUM):
            return False
    return True

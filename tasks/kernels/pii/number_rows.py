"""Tells which rows of digit groups are dates, years, versions or parts of dumps, and so no numbers
of telephones. Each judge looks at the groups that it is given alone."""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, ALPHA, DIGIT, HEX, is_any
from tasks.kernels.pii.groups import DIGITS, DOT, END, SHAPE, SIGNS, value_of
from tasks.kernels.pii.shapes import SIZE_BITS, shape_of

DATES = (shape_of(4, 2, 2), shape_of(2, 2, 4), shape_of(4, 4))
DAY = shape_of(8)
_DATE_SIZES = (1 << 3 * SIZE_BITS) - 1
"""The bits of the last three groups in a shape."""
_CODE, _LAST_SIZE = shape_of(1, 4), (1 << SIZE_BITS) - 1
_DAY_AND_FOUR, _FOURS = shape_of(2, 2, 4), shape_of(4, 4, 4)
_DEGREES, _SECONDS = shape_of(4, 5), shape_of(6, 7)
_PAIRS = shape_of(2, 2, 2, 2, 2)
_MONTH, _MONTH_SIZES = shape_of(4, 2), (1 << 2 * SIZE_BITS) - 1


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
    if k > 1 and v[groups[END]] == 47:
        # 1956/1957 24 2 begins with years, and 11/29 5430 6195 with a day or the like.
        if groups[SHAPE + 1] == DATES[2] and are_years(v, groups[END], groups[END + 1]):
            return True
        if groups[SHAPE + 2] == _DAY_AND_FOUR and k > 2:
            return True
    return k > 2 and is_date(v, i, groups[END + 2], groups[SHAPE + 2])


@inner
def is_cut_from_a_date(v: np.ndarray, hi: int, groups: np.ndarray, k: int) -> bool:
    """Whether the last two groups are a year and a month, and a day follows: 27  2008-06 is cut
    from 27  2008-06-20, and 4.21 2014/02 from 4.21 2014/02/02."""
    end = groups[END + k]
    if k == 0 or groups[SHAPE + k] & _MONTH_SIZES != _MONTH or end >= hi:
        return False
    goes_on = v[end] == 45 or (v[end] == 47 and end + 1 < hi and is_any(v[end + 1], DIGIT))
    return goes_on and 1800 <= value_of(v, end - 7, end - 3) < 2100


@inner
def holds_a_decimal(v: np.ndarray, groups: np.ndarray, k: int) -> bool:
    """Whether all of it is a decimal and a short number, or a number and a decimal of two places:
    176.222 499, 5344 117.20."""
    if k != 2:
        return False
    first, second, last = v[groups[END]], v[groups[END + 1]], groups[SHAPE + k] & _LAST_SIZE
    return (first == 46 and second == 32 and last < 4) or (
        first == 32 and second == 46 and last < 3
    )


@inner
def begins_a_group(v: np.ndarray, groups: np.ndarray, k: int, sign: int) -> bool:
    """Whether a sign behind a blank begins a group: the - of 353 405 -7620, a negative number, or
    the dot of 33.16 .42 .51, a fraction."""
    for n in range(k):  # noqa: SIM110 (a generator does not compile)
        if v[groups[END + n]] == 32 and v[groups[END + n] + 1] == sign:
            return True
    return False


@inner
def is_range(v: np.ndarray, groups: np.ndarray, k: int) -> bool:
    """Whether two dots stand between two numbers: 2610..2613."""
    return k == 1 and v[groups[END]] == 46 and v[groups[END] + 1] == 46


@inner
def repeats(v: np.ndarray, i: int, groups: np.ndarray, k: int) -> bool:
    """Whether the last of several groups with blanks between is the first again: 730 730 730."""
    size = groups[END] - i
    if k < 2 or v[groups[END]] != 32 or groups[SHAPE + k] & _LAST_SIZE != size:
        return False
    for n in range(size):  # noqa: SIM110 (a generator does not compile)
        if v[i + n] != v[groups[END + k] - size + n]:
            return False
    return True


@inner
def is_a_place(v: np.ndarray, lo: int, start: int, end: int, shape: int) -> bool:
    """Whether these groups behind a tab and a + are degrees north and west, with minutes:
    +4906-11631 (ISO 6709)."""
    if (shape != _DEGREES and shape != _SECONDS) or start == lo or v[start - 1] != 9:
        return False
    west = end - (5 if shape == _DEGREES else 7)
    minutes = max(value_of(v, start + 3, start + 5), value_of(v, west + 3, west + 5))
    return v[west - 1] == 45 and value_of(v, west, west + 3) <= 180 and minutes < 60


@inner
def is_in_a_formula(v: np.ndarray, hi: int, end: int) -> bool:
    """Whether a + follows, a star and a variable or a power of ten: +74954438640*x,
    +36314223356 E-109."""
    if end + 1 >= hi:
        return False
    if v[end] == 32 and end + 3 < hi and v[end + 1] == 69:
        return v[end + 2] == 45 and is_any(v[end + 3], DIGIT)
    return v[end] == 43 or (v[end] == 42 and is_any(v[end + 1], ALPHA))


@inner
def is_a_decimal(v: np.ndarray, hi: int, i: int, groups: np.ndarray, k: int) -> bool:
    """Whether one digit that is not a country code begins the groups behind a +, as in +2.52430958,
    a dotted row goes on behind them, as in +49213 525.624 128.4.1, or they begin with a day."""
    if k > 0 and groups[END] == i + 1 and v[i] != 49 and v[i] != 55:
        return True
    if k > 1 and groups[SHAPE + 2] == DATES[0] and is_date(v, i, groups[END + 2], DATES[0]):
        return True
    end = groups[END + k]
    goes_on = end + 1 < hi and v[end] == 46 and is_any(v[end + 1], DIGIT)
    return goes_on and groups[SIGNS + k] & DOT != 0


@inner
def ends_in_a_note(v: np.ndarray, i: int, start: int, groups: np.ndarray, k: int) -> bool:
    """Whether a parenthesis opens before the last group, after a blank, after an earlier
    parenthesis, or in a short number: 305-363 (1997), (1501)-502(1502), 1234(1234)."""
    opened = groups[END + k] - (groups[SHAPE + k] & _LAST_SIZE) - 1
    few = groups[DIGITS + k] < 9
    return k > 0 and v[opened] == 40 and (v[opened - 1] == 32 or start < i or few)


@inner
def are_bytes(v: np.ndarray, hi: int, i: int, groups: np.ndarray, k: int) -> bool:
    """Whether five pairs are part of a dump: two are zero, four are small or a byte with letters
    follows: 03 84 00 80 00, 01-23-45-67-89-ab."""
    if groups[SHAPE + k] != _PAIRS:
        return False
    zeros, small = 0, 0
    for n in range(k + 1):
        end = groups[END + n]
        zeros += v[end - 1] == 48 and v[end - 2] == 48
        small += v[end - 2] == 48
    if zeros > 1 or small > 3:
        return True
    end = groups[END + k]
    return end + 2 < hi and v[end] == 45 and is_any(v[end + 1], HEX) and is_any(v[end + 2], HEX)


@inner
def is_spaced_as_a_table(v: np.ndarray, groups: np.ndarray, k: int) -> bool:
    """Whether two blanks stand between some groups and one between others, as in 13  4102 1974, or
    one parenthesis closes where another opens, as in (506)(507 1062."""
    wide = 0
    for n in range(k):
        end = groups[END + n]
        wide += v[end] == 32 and v[end + 1] == 32
        if v[end] == 41 and v[end + 1] == 40:
            return True
    return 0 < wide < k


@inner
def are_values(v: np.ndarray, groups: np.ndarray, k: int, only_slashes: bool) -> bool:
    """Whether slashes join values and no parts of a number: 400/600/1200, or a day before others:
    05/05/05 20 15."""
    if k == 2 and only_slashes:
        return True
    day = groups[SHAPE + k] == _PAIRS and v[groups[END]] == 47 and v[groups[END + 1]] == 47
    return day and v[groups[END + 2]] == 32


@inner
def is_one_digit(v: np.ndarray, i: int, end: int) -> bool:
    """Whether all are one digit, and more than a number that is easy to remember would have, or the
    first four are zeros."""
    if v[i] == 48 and v[i + 1] == 48 and v[i + 2] == 48 and v[i + 3] == 48:
        return True
    for j in range(i + 1, end):
        if v[j] != v[i]:
            return False
    return end - i > 9


@inner
def is_a_limit(v: np.ndarray, i: int, end: int) -> bool:
    """Whether this is one of the largest integers of 32 bits, or one more."""
    if end - i != 10:
        return False
    value = value_of(v, i, end)
    return 2**31 - 1 <= value <= 2**31 or 2**32 - 1 <= value <= 2**32


@inner
def are_code_points(v: np.ndarray, i: int, shape: int) -> bool:
    """Whether three groups of four digits begin with two zeros: 0078 0069 0069."""
    return shape == _FOURS and v[i] == 48 and v[i + 1] == 48


@inner
def is_in_a_dump(v: np.ndarray, hi: int, end: int, size: int, labelled: bool) -> bool:
    """Whether one of the next two groups of hexadecimal digits mixes letters and digits, as in
    05 34 15 98 97 e8 06 and 0004 0028 5EB3. size: digits of the last group; groups have two, or
    four after four. labelled: a word follows such a group instead, as in Tél. 06 12 34 56 78 2e
    étage."""
    width = 4 if size == 4 else 2
    for _ in range(2):
        if end + width >= hi or v[end] != 32:
            return False
        letters = 0
        for j in range(end + 1, end + 1 + width):
            if not is_any(v[j], HEX):
                return False
            letters += is_any(v[j], ALPHA)
        end += width + 1
        if end < hi and is_any(v[end], ALNUM):
            return False
        if 0 < letters < width:
            return not (labelled and _is_before_a_word(v, hi, end))
    return False


@inner
def _is_before_a_word(v: np.ndarray, hi: int, end: int) -> bool:
    """Whether a blank and a word that is not hexadecimal follow."""
    if end + 1 >= hi or v[end] != 32:
        return False
    p = end + 1
    while p < hi and is_any(v[p], HEX):
        p += 1
    return p < hi and (is_any(v[p], ALPHA) or v[p] >= 0x80)


@inner
def goes_on_in_pairs(v: np.ndarray, hi: int, end: int) -> bool:
    """Whether pairs of digits follow, but not the five of another number:
    86 80 48 24 07 01 10 00."""
    pairs = 0
    while pairs < 6 and end + 2 < hi and v[end] == 32:
        if not (is_any(v[end + 1], DIGIT) and is_any(v[end + 2], DIGIT)):
            break
        if end + 3 < hi and is_any(v[end + 3], ALNUM):
            break
        pairs += 1
        end += 3
    return pairs > 1 and pairs != 5


@inner
def is_behind_a_dump(v: np.ndarray, lo: int, start: int) -> bool:
    """Whether one of the two pairs of hexadecimal digits before has a letter and a digit: 1c 3f 01
    00 00 00."""
    for _ in range(2):
        start -= 3
        if start < lo or v[start + 2] != 32:
            return False
        if not (is_any(v[start], HEX) and is_any(v[start + 1], HEX)):
            return False
        if start > lo and is_any(v[start - 1], ALNUM):
            return False
        if is_any(v[start], DIGIT) != is_any(v[start + 1], DIGIT):
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
    if shape != DAY and shape not in DATES:
        return False
    value = value_of(v, i, end)
    if shape == DATES[1]:
        day, month, year = value // 1_000_000, value // 10_000 % 100, value % 10_000
        return 1800 <= year < 2100 and 1 <= min(day, month) <= 12 and max(day, month) <= 31
    year, rest = value // 10_000, value % 10_000
    if shape == DATES[2] and 1400 <= year < rest <= min(year + 110, 2100):
        return True  # (1681-1767)
    if year < 1800 or year >= 2100:
        return False
    if shape == DATES[2] and 1800 <= rest < 2100:
        return True
    month, day = rest // 100, rest % 100
    return (shape == DATES[0] or shape == DAY) and 1 <= month <= 12 and 1 <= day <= 31

"""Checks numbers as national ids: check digits, dates and whatever else makes one, as
`python-stdnum` has them.

Compiled, so that numbers that differ all through a text are no slower than others; a test holds
each against stdnum. Where stdnum asks a registry (which counties of China had which numbers, when),
`tasks.pii.checks` asks it for the counties that are left. Values: see
`tasks.definitions.pii_kinds`. Cost: tens of nanoseconds a number.
"""

from __future__ import annotations

import numba
import numpy as np

from tasks.definitions import pii_kinds as kinds
from tasks.kernels import inner
from tasks.kernels.text.addresses import pointers

_DNI_LETTERS = np.frombuffer(b"TRWAGMYFPDXBNJZSQVHLCKE", np.uint8) - 64
_RRN_WEIGHTS = np.array([2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5], np.int64)
_PESEL_WEIGHTS = np.array([1, 3, 7, 9, 1, 3, 7, 9, 1, 3], np.int64)
_UNISSUED_SSN = np.array([78051120, 457555462, 219099999], np.int64)  # printed in advertisements
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)

# Verhoeff's scheme (1969): products of the dihedral group of ten elements, and powers of a
# permutation.
_PRODUCT = np.array(
    [[(a + b) % 5 if b < 5 else (a + b) % 5 + 5 for b in range(10)] for a in range(5)]
    + [[(a - b) % 5 + 5 if b < 5 else (a - b) % 5 for b in range(10)] for a in range(5)],
    np.int64,
)
_POWERS = np.zeros((8, 10), np.int64)
_POWERS[0], _POWERS[1] = range(10), (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)
for _n in range(2, 8):
    _POWERS[_n] = _POWERS[_n - 1][_POWERS[1]]

# Italian tax code: what a character counts at odd places, and the letters of months.
_DIGITS = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21)  # and A to J
_K_TO_Z = (2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_ODD_VALUES = np.array([*_DIGITS, *_DIGITS, *_K_TO_Z], np.int64)
_MONTH_OF = np.zeros(32, np.int64)
for _n, _c in enumerate(b"ABCDEHLMPRST"):
    _MONTH_OF[_c - 64] = _n + 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_ids(kind: int, values: np.ndarray) -> np.ndarray:
    """Which values are ids of the kind; of CN_RIC all but its county."""
    verdicts = np.zeros(len(values), np.bool_)
    digits = np.zeros(20, np.int64)
    for n in range(len(values)):
        verdicts[n] = _is_id(kind, values[n], pointers(digits))
    return verdicts


@inner
def _is_id(kind: int, value: int, digits: np.ndarray) -> bool:
    if kind == kinds.ES_DNI or kind == kinds.ES_NIE:
        return _DNI_LETTERS[(value >> 5) % 23] == value & 31
    if kind == kinds.CN_RIC:
        _write(value >> 4, 17, digits)
        remainder = 0
        for k in range(17):
            remainder = (remainder * 13 + digits[k]) % 11
        year, month, day = _number(digits, 6, 10), _number(digits, 10, 12), _number(digits, 12, 14)
        return (1 - 2 * remainder) % 11 == value & 15 and _is_date(year, month, day)
    if kind == kinds.US_SSN:
        area = value // 1_000_000
        if area == 0 or area == 666 or area >= 900:
            return False
        for number in _UNISSUED_SSN:
            if value == number:
                return False
        return value // 10_000 % 100 != 0 and value % 10_000 != 0
    if kind == kinds.FR_NIR:
        _write(value, 15, digits)
        # Months above 12 stand for births of unknown month (INSEE).
        month, sex = _number(digits, 3, 5), digits[0]
        dated = 1 <= month <= 12 or 20 <= month <= 42 or month >= 50
        return dated and (1 <= sex <= 4 or 7 <= sex <= 8) and 97 - value // 100 % 97 == value % 100
    if kind == kinds.IN_AADHAAR:
        _write(value, 12, digits)
        checksum, turned = 0, True
        for k in range(12):
            checksum = _PRODUCT[checksum, _POWERS[k % 8, digits[11 - k]]]
            turned &= digits[k] == digits[11 - k]
        return digits[0] >= 2 and checksum == 0 and not turned
    if kind == kinds.BR_CPF:
        _write(value, 11, digits)
        first, second = 0, 0
        for k in range(9):
            first += (10 - k) * digits[k]
            second += (11 - k) * digits[k]
        first = (11 - first) % 11 % 10
        second = (11 - second - 2 * first) % 11 % 10
        return value > 0 and first == digits[9] and second == digits[10]
    if kind == kinds.KR_RRN:
        _write(value, 13, digits)
        total = 0
        for k in range(12):
            total += _RRN_WEIGHTS[k] * digits[k]
        # 1, 2, 5, 6: born in the 1900s; 3, 4, 7, 8: from 2000 on; 9, 0: before 1900.
        born = digits[6]
        century = 1800 if born == 0 or born == 9 else 2000 if (born - 1) & 2 else 1900
        year, month, day = _number(digits, 0, 2), _number(digits, 2, 4), _number(digits, 4, 6)
        dated = _is_date(century + year, month, day)
        return dated and _number(digits, 7, 9) <= 96 and (11 - total % 11) % 10 == digits[12]
    if kind == kinds.PL_PESEL:
        _write(value, 11, digits)
        total = 0
        for k in range(10):
            total += _PESEL_WEIGHTS[k] * digits[k]
        month = _number(digits, 2, 4)
        century = 1800 if month >= 80 else 1900 + month // 20 * 100
        return -total % 10 == digits[10] and _is_date(
            century + _number(digits, 0, 2), month % 20, _number(digits, 4, 6)
        )
    if kind == kinds.NL_BSN:
        _write(value, 9, digits)
        total = -digits[8]
        for k in range(8):
            total += (9 - k) * digits[k]
        return value > 0 and total % 11 == 0
    return _is_idnr(value, digits)


@inner
def _is_idnr(value: int, digits: np.ndarray) -> bool:
    """The German tax id: of ten digits one comes two or three times and no other twice; ISO 7064,
    mod 11, 10."""
    _write(value, 11, digits)
    repeated, most = 0, 0
    for digit in range(10):
        count = 0
        for k in range(10):
            count += digits[k] == digit
        repeated += count > 1
        most = max(most, count)
    check = 5
    for k in range(11):
        check = ((check if check > 0 else 10) * 2 % 11 + digits[k]) % 10
    return digits[0] > 0 and repeated == 1 and most <= 3 and check == 1


@inner
def _write(value: int, count: int, digits: np.ndarray) -> None:
    for k in range(count - 1, -1, -1):
        digits[k] = value % 10
        value //= 10


@inner
def _number(digits: np.ndarray, begin: int, end: int) -> int:
    number = 0
    for k in range(begin, end):
        number = number * 10 + digits[k]
    return number


@inner
def _is_date(year: int, month: int, day: int) -> bool:
    if year < 1 or month < 1 or month > 12 or day < 1:
        return False
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= _MONTH_DAYS[month - 1] + (1 if leap else 0)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_codici_fiscali(v: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which words v[rows[:, 1]:rows[:, 2]] of the shape AAAAAA00A00A000A are Italian tax codes: a
    date and the last letter."""
    verdicts = np.zeros(len(rows), np.bool_)
    for r in range(len(rows)):
        start, total = rows[r, 1], np.int64(0)
        for k in range(15):
            c = np.int64(v[start + k])
            value = c - 48 if c < 65 else c - 55
            total += _ODD_VALUES[value] if k % 2 == 0 else value if value < 10 else value - 10
        year = (v[start + 6] - np.int64(48)) * 10 + v[start + 7] - 48
        day = ((v[start + 9] - np.int64(48)) * 10 + v[start + 10] - 48) % 40  # women's are 40 more
        dated = _is_date(year + (1900 if year >= 20 else 2000), _MONTH_OF[v[start + 8] - 64], day)
        verdicts[r] = dated and v[start + 15] == 65 + total % 26
    return verdicts

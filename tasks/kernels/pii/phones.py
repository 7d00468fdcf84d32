"""Tells which rows of digit groups may be telephone numbers, by their form and the words around.

A number with + is a candidate by its length. A national one needs one of these, from strong to
weak: a word before it that names a telephone; groups as its region writes them; an area code that
parentheses or a trunk 0 set apart; eleven digits of a mobile number of China; a word that goes with
telephones. The nearest word that says something else (an order, an account) turns down those that
are not grouped as telephones are. What is left goes to the number plans of `tasks.pii.phones`.
"""

from __future__ import annotations

import numpy as np

from tasks.definitions import pii_kinds as kinds
from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, ALPHA, DIGIT, contains, is_any
from tasks.kernels.pii.groups import (
    BLANK,
    DIGITS,
    DOT,
    END,
    HYPHEN,
    SHAPE,
    SIGNS,
    SLASH,
)
from tasks.kernels.pii.labels import (
    ADDRESS,
    CALL,
    CARD,
    NAME,
    NONE,
    NUMBER,
    OTHER,
    label_after,
    label_before,
)
from tasks.kernels.pii.number_places import (
    is_a_field,
    is_a_line_of_a_table,
    is_behind_a_state,
    is_below_bytes,
    is_code_between,
    is_escape,
    is_in_braces,
    is_next_field,
    is_part_of_a_name,
)
from tasks.kernels.pii.number_rows import (
    DATES,
    DAY,
    are_bytes,
    are_code_points,
    are_values,
    are_years,
    begins_a_group,
    counts_up,
    ends_in_a_note,
    goes_on_in_pairs,
    holds_a_date,
    holds_a_decimal,
    is_a_limit,
    is_a_row_of_digits,
    is_behind_a_dump,
    is_cut_from_a_date,
    is_date,
    is_in_a_dump,
    is_one_digit,
    is_range,
    is_spaced_as_a_table,
    is_version,
    repeats,
)
from tasks.kernels.pii.shapes import SIZE_BITS, shape_of

MAX_PHONE_DIGITS, MAX_NATIONAL_DIGITS, MAX_LABELLED_DIGITS = 15, 12, 14
MIN_TOLD_DIGITS = 9
"""Of a number that a word alone makes a telephone number."""
NORTH_AMERICAN_DIGITS = 8
"""Of the shortest number behind +1, the 1 included; Canada has some of seven digits (310-1234)."""
MIN_FRACTION_DIGITS = 10
"""Of a decimal: behind a dot no plan has so many digits in one group."""
NOT_OF_PHONES = 1 << CARD | 1 << ADDRESS
NEAR_CHARS, NEXT_CHARS = 24, 5
"""How far a word decides alone, and how far it decides against a number in groups."""

_LOCAL_SHAPES = (shape_of(3, 4), shape_of(4, 4), shape_of(7), shape_of(8), shape_of(3, 2, 2))
_TRUNK_SHAPES = (shape_of(3, 7), shape_of(3, 8), shape_of(4, 7), shape_of(4, 8))
_MOBILE_SHAPES = np.array(
    [shape_of(*sizes) for sizes in ((11,), (3, 8), (3, 4, 4), (4, 3, 4), (3, 3, 5), (3, 5, 3))],
    np.int64,
)
_JOINS = np.frombuffer(b"#$%&=?@^\\_~", np.uint8).astype(np.uint64)
"""What joins a number to a longer name."""
_LAST_SIZE = (1 << SIZE_BITS) - 1
_YEARS_SIZES = (1 << 2 * SIZE_BITS) - 1
_ZIP, _SOCIAL_SECURITY = shape_of(5, 4), shape_of(3, 2, 4)
_NEAR_BYTES = 48
"""How far Chinese makes an unbroken number a Chinese one."""


@inner
def phone_start(v: np.ndarray, lo: int, i: int) -> int:
    """Where an international number begins whose + stands before the digit i, or -1."""
    plus = i - 1
    if plus > lo and (is_any(v[plus - 1], ALNUM) or v[plus - 1] == 43 or v[plus - 1] == 95):
        return -1
    return plus if v[i] != 48 else -1


@inner
def follows_abbreviation(v: np.ndarray, lo: int, i: int) -> bool:
    """Whether a dot behind a letter stands before i, as in "Tel.030 901820"."""
    return i - 2 >= lo and v[i - 1] == 46 and is_any(v[i - 2], ALPHA)


@inner
def local_phone_start(v: np.ndarray, lo: int, hi: int, i: int, first_end: int) -> int:
    """Where a national number begins with the digit i, its parenthesis included, or -1."""
    start = i - 1 if i > lo and v[i - 1] == 40 else i
    if start > lo:
        c = v[start - 1]
        # One of . - / _ + $ % ?
        sign = 45 <= c <= 47 or c == 95 or c == 43 or c == 36 or c == 37 or c == 63
        if (sign and not follows_abbreviation(v, lo, start)) or is_any(c, ALNUM):
            return -1
        # Behind digits and a colon, comma or, in a row of numbers, a blank nothing begins.
        blank_follows = first_end < hi and v[first_end] == 32
        joined = c == 58 or c == 44 or (c == 32 and blank_follows)
        if joined and start - 1 > lo and is_any(v[start - 2], DIGIT):
            return -1
    return start


@inner
def ends_a_phone(v: np.ndarray, hi: int, end: int) -> bool:
    """A digit group that a letter ends is a name or a code, except for an extension."""
    return end >= hi or not (is_any(v[end], ALPHA) or v[end] == 95) or v[end] == 120


@inner
def _goes_on(v: np.ndarray, hi: int, end: int, signs: int) -> bool:
    """Whether a national number is only the beginning of a longer row of numbers."""
    if end + 1 >= hi:
        return False
    c = v[end]
    # 187 6575 8110 -1927, 03302 15973 /0106
    if c == 32 and (v[end + 1] == 45 or v[end + 1] == 47) and signs & BLANK != 0:
        return end + 2 < hi and is_any(v[end + 2], DIGIT)
    if not is_any(v[end + 1], DIGIT):
        return False
    return c == 45 or c == 46 or c == 47 or (c == 32 and signs & BLANK != 0)


@inner
def is_told(v: np.ndarray, lo: int, start: int) -> bool:
    """Whether a word before an international number says what it is, whatever its plan says."""
    label, chars, crossed = label_before(v, lo, start, NOT_OF_PHONES)
    return label in (NAME, CALL) and chars <= NEAR_CHARS and not crossed


@inner
def national_phone(v, lo, hi, i, start, groups, k, nth, label, chars, crossed):  # type: ignore[no-untyped-def]
    """Which kind of telephone number the groups from i to group k may be, or 0.

    nth: the place of their shape among those of regions, or -1. label, chars, crossed: as
    `label_before` gives them.
    """
    digits, shape, signs, end = (
        groups[DIGITS + k],
        groups[SHAPE + k],
        groups[SIGNS + k],
        groups[END + k],
    )
    dotted = start == i and start > lo and v[start - 1] == 46
    # 252.227-7014 is a clause of some law, 10.0.19041.1 a version, 8.8.4.4 an address.
    if signs & DOT != 0 and (signs & HYPHEN != 0 or dotted or is_version(groups, k)):
        return 0
    if signs & DOT != 0 and end + 1 < hi and v[end] == 46 and is_any(v[end + 1], DIGIT):
        return 0
    if is_date(v, i, end, shape) or holds_a_date(v, i, groups, k) or counts_up(v, i, groups, k):
        return 0
    if groups[END] == i + 8 and is_date(v, i, i + 8, DAY):  # ordinance 20151008-011
        return 0
    if shape == _ZIP and signs == HYPHEN and is_behind_a_state(v, lo, i):
        return 0
    # 0.0004392232 is a decimal, 0-268435455 a range, and 1 (1900-1999) the years of something.
    zero = k > 0 and groups[END] == i + 1 and v[i] == 48
    if zero and (v[i + 1] == 46 or (k == 1 and v[i + 1] == 45)):
        return 0
    # 33.3333333333 is a decimal, and so is whatever a per cent sign follows.
    if k == 1 and signs == DOT and digits - groups[DIGITS] >= MIN_FRACTION_DIGITS:
        return 0
    if end < hi and v[end] == 37 and not is_escape(v, hi, end):
        return 0
    if k > 1 and shape & _YEARS_SIZES == DATES[2] and are_years(v, groups[END + k - 1], end):
        return 0
    if is_cut_from_a_date(v, hi, groups, k) or holds_a_decimal(v, groups, k):
        return 0
    if begins_a_group(v, groups, k, 46) or (k == 0 and is_one_digit(v, i, end)):
        return 0
    if k > 0 and is_in_braces(v, lo, start, chars):
        return 0
    last = shape & _LAST_SIZE
    plain = k == 0 or shape == _LOCAL_SHAPES[1]
    if is_range(v, groups, k) or (plain and is_a_field(v, lo, hi, start, end, digits)):
        return 0
    if k > 0 and signs & BLANK != 0:
        labelled = label == NAME or (label == CALL and not crossed)
        pairs = (
            last == 2 and k > 2 and (is_behind_a_dump(v, lo, start) or goes_on_in_pairs(v, hi, end))
        )
        if pairs or is_in_a_dump(v, hi, end, last, labelled):
            return 0
    if k == 0 and digits <= 8 and is_part_of_a_name(v, hi, end):
        return 0
    if k == 0 and digits == 8 and label in (NAME, CALL) and is_next_field(v, lo, start, chars):
        return 0
    if label in (NONE, NUMBER) or crossed or (label == OTHER and chars > NEXT_CHARS):
        after = label_after(v, lo, hi, end)
        if after != NONE and after < OTHER:
            label, chars, crossed = after, 0, False
    if (label != NAME or digits < MIN_TOLD_DIGITS) and ends_in_a_note(v, i, start, groups, k):
        return 0
    if label != NAME and (
        begins_a_group(v, groups, k, 45)
        or are_code_points(v, i, shape)
        or are_bytes(v, hi, i, groups, k)
        or is_spaced_as_a_table(v, groups, k)
        or (last == 2 and k == 4 and is_below_bytes(v, lo, start))
    ):
        return 0
    if label == NAME and chars <= NEAR_CHARS and not crossed and digits <= MAX_NATIONAL_DIGITS:
        local = False
        for n in range(len(_LOCAL_SHAPES)):
            local = local or (shape == _LOCAL_SHAPES[n] and signs & SLASH == 0)
        # Unbroken digits further away need a plan.
        told = digits >= MIN_TOLD_DIGITS and (k > 0 or chars <= NEAR_CHARS // 2)
        if told or (local and chars <= NEAR_CHARS // 2):
            return kinds.TOLD_PHONE
    far = label != OTHER or chars > NEAR_CHARS
    if (
        far
        and not dotted
        and not _goes_on(v, hi, end, signs)
        and _is_cn_mobile(v, lo, hi, i, start, end, digits, shape, signs)
    ):
        return kinds.CN_MOBILE
    named = label == NAME and not crossed
    if k == 0 and not named and (is_a_row_of_digits(v, i, end) or is_a_limit(v, i, end)):
        return 0
    # Seconds since 1970 have ten digits, too.
    weak = label in (CALL, NUMBER) and not crossed
    weak = weak and not (digits == 10 and k == 0 and v[i] == 49)
    # Many plans have numbers of eight digits, so their word must be near.
    near = digits > 8 or chars <= NEAR_CHARS // 2
    # 5344342.34 is a decimal, 12.780/2013 a law, 01 02 03 04 05 the beginning of a row.
    weak = weak and not (k == 1 and signs == DOT) and signs & (DOT | SLASH) != DOT | SLASH
    weak = weak and not _goes_on(v, hi, end, signs)
    weak = weak and shape != _SOCIAL_SECURITY and not repeats(v, i, groups, k)
    weak = weak and not (
        signs & ~(BLANK | SLASH) == 0 and is_code_between(v, hi, start, end, chars)
    )
    # 210 461  68 1 is a row of numbers, where 040 3712345 0 is a telephone.
    weak = weak and not (k > 1 and last == 1 and shape >> SIZE_BITS & _LAST_SIZE < 4)
    if digits > 7 and near and (named or weak):
        return kinds.LABELLED_PHONE
    if dotted or _goes_on(v, hi, end, signs) or (label == OTHER and chars <= NEXT_CHARS):
        return 0
    set_apart = start < i and k == 1 and v[groups[END]] == 41 and digits >= 10
    if k == 1 and v[i] == 48 and signs == HYPHEN:
        for n in range(len(_TRUNK_SHAPES)):
            set_apart = set_apart or shape == _TRUNK_SHAPES[n]
    if set_apart and digits <= MAX_NATIONAL_DIGITS:
        return kinds.PLAIN_PHONE
    # 02334.14092 is a decimal.
    if signs & (BLANK | DOT) == BLANK | DOT or (k == 1 and signs == DOT):
        return 0
    if label != NAME and signs & SLASH != 0 and are_values(v, groups, k, signs == SLASH):
        return 0
    if signs == BLANK and v[i] != 48 and is_a_line_of_a_table(v, lo, hi, start, end):
        return 0
    if k > 0 and nth >= 0 and 9 <= digits <= MAX_NATIONAL_DIGITS:
        return kinds.LOCAL_PHONE
    return 0


@inner
def _is_cn_mobile(v, lo, hi, i, start, end, digits, shape, signs):  # type: ignore[no-untyped-def]
    """Whether these are the eleven digits of a mobile number of China, joined to no longer name."""
    if digits != 11 or v[i] != 49 or v[i + 1] < 51 or signs & (DOT | SLASH) != 0:
        return False
    if start > lo and contains(_JOINS, np.uint64(v[start - 1])):
        return False
    if end < hi and contains(_JOINS, np.uint64(v[end])):
        return False
    if shape == _MOBILE_SHAPES[0]:  # one counter of eleven digits in fourteen looks so
        return _is_near_chinese(v, lo, hi, start, end)
    fits = False
    for n in range(1, len(_MOBILE_SHAPES)):
        fits = fits or shape == _MOBILE_SHAPES[n]
    return fits


@inner
def _is_near_chinese(v: np.ndarray, lo: int, hi: int, start: int, end: int) -> bool:
    """Whether a Chinese character stands near on the same line."""
    for step in (-1, 1):
        k = start - 1 if step < 0 else end
        for _ in range(_NEAR_BYTES):
            if k < lo or k >= hi or v[k] == 10 or v[k] == 60 or v[k] == 62 or v[k] == 42:
                break
            if 0xE4 <= v[k] <= 0xE9:
                return True
            k += step
    return False

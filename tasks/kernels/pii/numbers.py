"""Tells which numbers of people begin at a digit: cards, bank accounts, national ids.

All are rows of digit groups (`groups.py`). Cards and bank accounts are final here; the others get a
value and are decided by it outside. Vetoed: decimals, names and codes, longer rows of numbers,
dates, and weak checksums that no word announces.
"""

from __future__ import annotations

import numpy as np

from tasks.definitions import pii_kinds as kinds
from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, DIGIT, HEX, UPPER, is_any
from tasks.kernels.pii.context import announced
from tasks.kernels.pii.groups import (
    BLANK,
    DIGITS,
    DOT,
    END,
    HYPHEN,
    SHAPE,
    SIGNS,
    is_free,
    numbers_after,
    numbers_before,
    value_of,
)
from tasks.kernels.pii.labels import ADDRESS, CALL, CARD, NAME, OTHER, label_before
from tasks.kernels.pii.shapes import shape_of, shape_table

_UNSORTED_FORMS: tuple[tuple[tuple[int, ...], int, int, bool], ...] = (
    ((18,), 0, kinds.CN_RIC, False),
    ((17,), 0, kinds.CN_RIC, False),  # and X
    ((3, 2, 4), HYPHEN, kinds.US_SSN, False),
    ((3, 2, 4), BLANK, kinds.US_SSN, True),
    ((9,), 0, kinds.US_SSN, True),
    ((11,), 0, kinds.DE_IDNR, True),
    ((2, 3, 3, 3), BLANK, kinds.DE_IDNR, True),
    ((15,), 0, kinds.FR_NIR, False),
    ((13, 2), BLANK, kinds.FR_NIR, False),
    ((1, 2, 2, 2, 3, 3, 2), BLANK, kinds.FR_NIR, False),
    ((12,), 0, kinds.IN_AADHAAR, True),
    ((4, 4, 4), BLANK, kinds.IN_AADHAAR, True),
    ((4, 4, 4), HYPHEN, kinds.IN_AADHAAR, True),
    ((11,), 0, kinds.BR_CPF, True),
    ((3, 3, 3, 2), DOT | HYPHEN, kinds.BR_CPF, False),
    ((6, 7), HYPHEN, kinds.KR_RRN, False),
    ((11,), 0, kinds.PL_PESEL, True),
    ((9,), 0, kinds.NL_BSN, True),
    ((8,), 0, kinds.ES_DNI, False),  # and a letter
)
_FORMS = sorted(_UNSORTED_FORMS, key=lambda form: shape_of(*form[0]))
FORM_SHAPES = np.array([shape_of(*sizes) for sizes, _, _, _ in _FORMS], np.int64)
_FORM_SIGNS = np.array([signs for _, signs, _, _ in _FORMS], np.int64)
_FORM_KIND = np.array([kind for _, _, kind, _ in _FORMS], np.int64)
_FORM_WEAK = np.array([weak for _, _, _, weak in _FORMS], np.uint8)
FOUR_FOURS = shape_of(4, 4, 4, 4)
MAX_TABLE_BYTES = 40
_NOT_OF_CARDS = 1 << NAME | 1 << CALL | 1 << ADDRESS
NUM_FORMS = len(_FORMS)
FORM_TABLE = shape_table(FORM_SHAPES)

# Length of an IBAN by country, ISO 13616 registry of SWIFT.
_IBAN_BYTES = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18"
    " DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22"
    " IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19"
    " MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31"
    " SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)
IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBAN_BYTES.split()}
_IBAN_TABLE = np.zeros(26 * 26, np.uint8)
for _country, _length in IBAN_LENGTHS.items():
    _IBAN_TABLE[(ord(_country[0]) - 65) * 26 + ord(_country[1]) - 65] = _length


@inner
def card(v: np.ndarray, lo: int, hi: int, i: int, groups: np.ndarray, count: int) -> int:
    """End of the card number that begins at the digit i, or -1: shape, issuer, Luhn, and no longer
    row of numbers."""
    for k in range(min(count, 5) - 1, -1, -1):
        digits, shape, signs = groups[DIGITS + k], groups[SHAPE + k], groups[SIGNS + k]
        if digits < 13 or signs > HYPHEN or not _is_card_shape(shape, k + 1):
            continue
        end = groups[END + k]
        if not is_free(v, lo, hi, i, end) or not _is_card_number(v, i, end):
            continue
        label, _, _ = label_before(v, lo, i, _NOT_OF_CARDS)
        if label == CARD:
            return end
        # Without a word for it: of a big issuer, and not in a row of numbers or behind the word for
        # something else. One number of sixteen digits in thirty looks like a card.
        neighbours = numbers_before(v, lo, i) + numbers_after(v, hi, end)
        if (
            neighbours == 0
            and label != OTHER
            and _is_of_big_issuer(v, i, digits)
            and not _is_in_a_table(v, lo, hi, i, end)
            and not _is_a_series(v, i, shape)
        ):
            return end
    return -1


@inner
def _is_of_big_issuer(v: np.ndarray, i: int, digits: int) -> bool:
    two = (v[i] - np.int64(48)) * 10 + v[i + 1] - 48
    if digits == 15:
        return two == 34 or two == 37
    return digits == 16 and (v[i] == 52 or 51 <= two <= 55 or two == 62 or two == 65 or two == 35)


@inner
def _is_in_a_table(v: np.ndarray, lo: int, hi: int, i: int, end: int) -> bool:
    """Whether another long number stands near on the same line: codes and ids stand in rows, cards
    alone."""
    for step in (-1, 1):
        k, run, place = (i - 1 if step < 0 else end), 0, 0
        while lo <= k < hi and place < MAX_TABLE_BYTES and v[k] != 10:
            run = run + 1 if is_any(v[k], HEX) else 0
            if run >= 4 and is_any(v[k], DIGIT):
                return True
            k += step
            place += 1
    return False


@inner
def _is_a_series(v: np.ndarray, i: int, shape: int) -> bool:
    """Whether four groups of four are near each other, as neighbours in a list of codes are."""
    if shape != FOUR_FOURS:
        return False
    least, most = 10000, 0
    for k in range(4):
        value = value_of(v, i + 5 * k, i + 5 * k + 4)
        least, most = min(least, value), max(most, value)
    return most - least < 1000


@inner
def _is_card_shape(shape: int, count: int) -> bool:
    # Sizes 4-4-4-4, 4-4-4-4-1 to 3, 4-6-5 and 4-6-4 as codes of five bits each. Maestro alone has
    # thirteen digits.
    if count == 1:
        return shape <= 19
    if count == 3:
        return shape >> 5 == 0b00100_00110 and (shape & 31 == 5 or shape & 31 == 4)
    if count == 4:
        return shape == FOUR_FOURS
    return count == 5 and shape >> 5 == FOUR_FOURS and shape & 31 <= 3


@inner
def _is_card_number(v: np.ndarray, start: int, end: int) -> bool:
    total, length, prefix = 0, 0, 0
    for j in range(end - 1, start - 1, -1):
        if is_any(v[j], DIGIT):
            digit = v[j] - np.int64(48)
            if length % 2 == 1:
                digit = digit * 2 - 9 if digit > 4 else digit * 2
            total += digit
            length += 1
    if total % 10 != 0:
        return False
    for j in range(start, start + 4):
        prefix = prefix * 10 + (v[j] - np.int64(48))
    two = prefix // 100
    # Maestro and Mir: card() asks for a word besides.
    maestro = two == 50 or 56 <= two <= 58 or prefix == 6304 or prefix == 6759
    if maestro or 6761 <= prefix <= 6763:
        return True
    if length == 15:
        return two == 34 or two == 37  # American Express
    if length == 14:
        return 300 <= prefix // 10 <= 305 or two == 36 or two == 38  # Diners Club
    if length >= 16 and 2200 <= prefix <= 2204:
        return True
    if length == 16 and (51 <= two <= 55 or 2221 <= prefix <= 2720):  # Mastercard
        return True
    # Visa; its old numbers of 13 digits would take time stamps and article numbers.
    if prefix // 1000 == 4:
        return length == 16 or length == 19
    discover = prefix == 6011 or 644 <= prefix // 10 <= 649 or two == 65
    jcb, union_pay = 3528 <= prefix <= 3589, two == 62
    return length >= 16 and (discover or jcb or union_pay)


@inner
def national_id(
    v: np.ndarray, lo: int, hi: int, i: int, groups: np.ndarray, k: int, nth: int
) -> tuple[int, int, int]:
    """(end, kind, value) of the digits from i to the end of group k, which has the shape of the nth
    form; end -1 if none."""
    kind, end = _FORM_KIND[nth], groups[END + k]
    if groups[SIGNS + k] != _FORM_SIGNS[nth]:
        return -1, 0, 0
    value = value_of(v, i, end)
    if FORM_SHAPES[nth] == 17 or kind == kinds.ES_DNI:
        if end >= hi:
            return -1, 0, 0
        c = v[end]
        end += 1
        if kind == kinds.ES_DNI:
            if not is_any(c, UPPER) or (_is_date(value) and not announced(v, lo, i, kind)):
                return -1, 0, 0
            value = value * 32 + (c - np.int64(64))
        elif c | 32 == 120:
            value = value * 16 + 10
        else:
            return -1, 0, 0
    elif kind == kinds.CN_RIC:
        value = value // 10 * 16 + value % 10
    if not is_free(v, lo, hi, i, end) or numbers_before(v, lo, i) + numbers_after(v, hi, end) > 0:
        return -1, 0, 0
    if _FORM_WEAK[nth] and not announced(v, lo, i, kind):
        return -1, 0, 0
    if FORM_SHAPES[nth] == 15 and _is_clock(value):
        return -1, 0, 0
    return end, kind, value


@inner
def _is_clock(value: int) -> bool:
    """Whether fifteen digits are year, month, day, hour, minute, second and milliseconds."""
    month, day, hour = value // 10**11 % 100, value // 10**9 % 100, value // 10**7 % 100
    dated = 1 <= month <= 12 and 1 <= day <= 31 and hour < 24
    return dated and value // 10**5 % 100 < 60 and value // 1000 % 100 < 60


@inner
def _is_date(value: int) -> bool:
    return 18000000 <= value < 21000000 and 1 <= value // 100 % 100 <= 12 and 1 <= value % 100 <= 31


@inner
def foreigner_id(v: np.ndarray, lo: int, hi: int, i: int, end: int) -> tuple[int, int]:
    """The Spanish NIE with the seven digits from i to end, as (end, value), or (-1, 0)."""
    value = v[i - 1] - np.int64(88)
    if value < 0 or value > 2 or end >= hi or not is_any(v[end], UPPER):
        return -1, 0
    if not is_free(v, lo, hi, i - 1, end + 1):
        return -1, 0
    for k in range(i, end):
        value = value * 10 + (v[k] - np.int64(48))
    return end + 1, value * 32 + (v[end] - np.int64(64))


@inner
def iban_end(v: np.ndarray, lo: int, hi: int, i: int) -> int:
    """End of the bank account number (ISO 13616) whose check digits are at i, after two capitals,
    or -1.

    Compact or in groups of four with blanks; country length and remainder 1 modulo 97.
    """
    start = i - 2
    length = np.int64(_IBAN_TABLE[(v[start] - np.int64(65)) * 26 + v[start + 1] - np.int64(65)])
    if length == 0 or (start > lo and (is_any(v[start - 1], ALNUM) or v[start - 1] == 95)):
        return -1
    grouped = start + 4 < hi and v[start + 4] == 32
    j, taken, head, remainder = start, 0, 0, 0
    while taken < length:
        if grouped and taken > 0 and taken % 4 == 0:
            if j >= hi or v[j] != 32:
                return -1
            j += 1
        is_check = taken == 2 or taken == 3
        if j >= hi or not is_any(v[j], DIGIT if is_check else DIGIT | UPPER):
            return -1
        digit = v[j] - np.int64(48) if v[j] < 65 else v[j] - np.int64(55)
        if taken < 4:  # country and check digits count last
            head = head * (10 if digit < 10 else 100) + digit
        else:
            remainder = (remainder * (10 if digit < 10 else 100) + digit) % 97
        taken += 1
        j += 1
    if (remainder * 1_000_000 + head) % 97 != 1 or (j < hi and (is_any(v[j], ALNUM) or v[j] == 95)):
        return -1
    return j


@inner
def is_codice_fiscale(v: np.ndarray, lo: int, hi: int, i: int) -> bool:
    """The shape AAAAAA00A00A000A of the Italian tax code, its first digit at i."""
    start, end = i - 6, i + 10
    if start < lo or end > hi or not is_free(v, lo, hi, start, end):
        return False
    for k in range(16):
        letter = k < 6 or k == 8 or k == 11 or k == 15
        if not is_any(v[start + k], UPPER if letter else DIGIT):
            return False
    return True

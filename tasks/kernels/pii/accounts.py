"""Judges digits as card numbers and bank accounts: shape, issuer or country, checksum."""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, DIGIT, UPPER, is_any
from tasks.kernels.pii.numbers import (
    DIGITS,
    END,
    HYPHEN,
    SHAPE,
    SIGNS,
    is_free,
    numbers_after,
    numbers_before,
)

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
        if digits < 14 or signs > HYPHEN or not _is_card_shape(shape, k + 1):
            continue
        end = groups[END + k]
        if (
            is_free(v, lo, hi, i, end)
            and numbers_before(v, lo, i) + numbers_after(v, hi, end) <= 1
            and _is_card_number(v, i, end)
        ):
            return end
    return -1


@inner
def _is_card_shape(shape: int, count: int) -> bool:
    # Sizes 4-4-4-4, 4-4-4-4-1 to 3, 4-6-5 and 4-6-4 as codes of five bits each.
    if count == 1:
        return shape <= 19
    if count == 3:
        return shape >> 5 == 0b00100_00110 and (shape & 31 == 5 or shape & 31 == 4)
    if count == 4:
        return shape == 0b00100_00100_00100_00100
    return count == 5 and shape >> 5 == 0b00100_00100_00100_00100 and shape & 31 <= 3


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
    if length == 15:
        return two == 34 or two == 37  # American Express
    if length == 14:
        return 300 <= prefix // 10 <= 305 or two == 36 or two == 38  # Diners Club
    if length == 16 and (51 <= two <= 55 or 2221 <= prefix <= 2720):  # Mastercard
        return True
    if (
        prefix // 1000 == 4
    ):  # Visa; its old numbers of 13 digits would take time stamps and article numbers
        return length == 16 or length == 19
    # Discover, JCB, UnionPay
    return length >= 16 and (
        prefix == 6011
        or 644 <= prefix // 10 <= 649
        or two == 65
        or 3528 <= prefix <= 3589
        or two == 62
    )


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
        if (
            j >= hi
            or not is_any(v[j], DIGIT | UPPER)
            or ((taken == 2 or taken == 3) and not is_any(v[j], DIGIT))
        ):
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

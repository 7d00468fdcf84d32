"""Does a card or telephone number begin at this digit?

Cards are final here: shape, issuer and Luhn check. Telephone numbers are shapes that `tasks.pii` validates.
Vetoed: decimals, names and codes, and rows of more numbers.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels.pii_bytes import ALPHA, DIGIT, digits_end, helper, is_any

MAX_PHONE_BYTES = 40


@helper
def card(v: np.ndarray, lo: int, hi: int, i: int) -> int:
    """End of the card number that begins at the digit i, or -1: shape, issuer, Luhn, and no longer row of numbers."""
    if i > lo:
        c = v[i - 1]
        if is_any(c, ALPHA | DIGIT) or c == 46 or c == 95 or c == 43:
            return -1
        if c == 45 and i - 1 > lo and is_any(v[i - 2], ALPHA | DIGIT):
            return -1
    ends = np.zeros(8, np.int64)
    sizes = np.zeros(8, np.int64)
    count, j, separator = 0, i, np.uint8(0)
    while count < 8:
        k = digits_end(v, j, hi, 19)
        if k == j or k - j > 19:
            break
        ends[count], sizes[count] = k, k - j
        count += 1
        if k + 1 >= hi or (v[k] != 32 and v[k] != 45) or (count > 1 and v[k] != separator) or not is_any(v[k + 1], DIGIT):
            break
        separator = v[k]
        j = k + 1
    for groups in (5, 4, 3, 1):
        if groups > count or not _card_shape(sizes, groups):
            continue
        end = ends[groups - 1]
        if end < hi:
            c = v[end]
            if is_any(c, ALPHA | DIGIT) or c == 95 or (end + 1 < hi and c == 46 and is_any(v[end + 1], DIGIT)):
                continue
            if c == 45 and end + 1 < hi and is_any(v[end + 1], DIGIT | ALPHA):
                continue
        if count - groups + _groups_before(v, lo, i) <= 1 and _is_card_number(v, i, end):
            return end
    return -1


@helper
def _card_shape(sizes: np.ndarray, groups: int) -> bool:
    if groups == 1:
        return 14 <= sizes[0] <= 19
    if sizes[0] != 4:
        return False
    if groups == 3:
        return sizes[1] == 6 and (sizes[2] == 5 or sizes[2] == 4)
    if sizes[1] != 4 or sizes[2] != 4:
        return False
    return sizes[3] == 4 and (groups == 4 or sizes[4] <= 3)


@helper
def _groups_before(v: np.ndarray, lo: int, i: int) -> int:
    """How many groups of digits, at most three, stand before i with a blank between."""
    count = 0
    while count < 3 and i - 2 >= lo and v[i - 1] == 32 and is_any(v[i - 2], DIGIT):
        i -= 1
        limit = max(lo, i - 20)
        while i > limit and is_any(v[i - 1], DIGIT):
            i -= 1
        count += 1
    return count


@helper
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
    taken, j = 0, start
    while taken < 4:
        if is_any(v[j], DIGIT):
            prefix = prefix * 10 + (v[j] - np.int64(48))
            taken += 1
        j += 1
    two = prefix // 100
    if length == 15:
        return two == 34 or two == 37  # American Express
    if length == 14:
        return 300 <= prefix // 10 <= 305 or two == 36 or two == 38  # Diners Club
    if length == 16 and (51 <= two <= 55 or 2221 <= prefix <= 2720):  # Mastercard
        return True
    if prefix // 1000 == 4:  # Visa; its old numbers of 13 digits would take time stamps and article numbers
        return length == 16 or length == 19
    # Discover, JCB, UnionPay
    return length >= 16 and (prefix == 6011 or 644 <= prefix // 10 <= 649 or two == 65 or 3528 <= prefix <= 3589 or two == 62)


@helper
def phone(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The shape of an international phone number whose + stands before the digit i, as (start, end), or (-1, -1)."""
    plus = i - 1
    if plus > lo and (is_any(v[plus - 1], ALPHA | DIGIT) or v[plus - 1] == 43 or v[plus - 1] == 95):
        return -1, -1
    end, _ = _phone_end(v, i, hi, 7, 15)
    return (plus, end) if end > 0 and v[i] != 48 else (-1, -1)


@helper
def local_phone(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The shape of a national phone number that begins at the digit i, as (start, end), or (-1, -1)."""
    start = i - 1 if i > lo and v[i - 1] == 40 else i
    if start > lo:
        c = v[start - 1]
        if is_any(c, ALPHA | DIGIT) or c == 46 or c == 45 or c == 47 or c == 95 or c == 43 or c == 36 or c == 37:
            return -1, -1
        if start - 1 > lo and is_any(v[start - 2], DIGIT) and (c == 58 or c == 44 or (c == 32 and _blank_follows(v, i, hi))):
            return -1, -1
    end, groups = _phone_end(v, i, hi, 9, 12)
    return (start, end) if end > 0 and groups >= 2 else (-1, -1)


@helper
def _phone_end(v: np.ndarray, i: int, hi: int, fewest: int, most: int) -> tuple[int, int]:
    """End of the longest row of digit groups from i with `fewest` to `most` digits, and its number of groups, or (-1, 0)."""
    best, best_groups, digits, groups = -1, 0, 0, 0
    limit = min(hi, i + MAX_PHONE_BYTES)
    while i < limit:
        j = digits_end(v, i, limit, most)
        digits += j - i
        if digits > most or j == i or (j == limit and limit < hi):
            break
        groups += 1
        # A digit group that a letter ends is a name or a code, except for an extension.
        named = j < hi and (is_any(v[j], ALPHA) or v[j] == 95) and v[j] != 120
        if digits >= fewest and not named:
            best, best_groups = j, groups
        i = j
        for _ in range(2):
            if i < limit:
                i += _separator_bytes(v, i, limit)
        if i == j or named:
            break
    return best, best_groups


@helper
def _separator_bytes(v: np.ndarray, i: int, hi: int) -> int:
    """Length of one separator inside phone numbers at i, or 0: blank, hyphens, dot, slash, parentheses."""
    c = v[i]
    if c == 32 or c == 45 or c == 46 or c == 47 or c == 40 or c == 41:
        return 1
    if c == 0xC2 and i + 1 < hi and v[i + 1] == 0xA0:
        return 2
    if c == 0xE2 and i + 2 < hi and v[i + 1] == 0x80 and 0x90 <= v[i + 2] <= 0x93:
        return 3
    return 0


@helper
def _blank_follows(v: np.ndarray, i: int, hi: int) -> bool:
    j = digits_end(v, i, hi, 12)
    return j < hi and v[j] == 32

"""Tells by the text around a number that it is a field of a table, an argument of code or a part of
a longer name, and so no telephone number."""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, ALPHA, DIGIT, HEX, UPPER, contains, is_any

MAX_TABLE_LINE, MAX_FIELD_BYTES = 48, 24
"""How far the line before, and the field before, are read back."""
_INDENTS = np.frombuffer(b"\t\n\r #*", np.uint8).astype(np.uint64)
_CODE_SIGNS = np.frombuffer(b";[]{}", np.uint8).astype(np.uint64)


@inner
def is_a_field(v: np.ndarray, lo: int, hi: int, start: int, end: int, digits: int) -> bool:
    """Whether a number of few digits stands between two tabs, or tabs indent it: in such rows the
    word before it belongs to another number."""
    if digits > 9 or start - 2 < lo or v[start - 1] != 9:
        return False
    indented = v[start - 2] == 10 or (v[start - 2] == 9 and start - 3 >= lo and v[start - 3] == 10)
    return indented or (end < hi and v[end] == 9)


@inner
def is_next_field(v: np.ndarray, lo: int, start: int, chars: int) -> bool:
    """Whether a quote and a comma end the text with the word, which is so many bytes before, and it
    has at least three words: "paper for fax","48022090" are fields of a row."""
    p, limit = start - 1, max(lo + 1, start - chars)
    while p > limit and not (v[p] == 44 and v[p - 1] == 34):
        p -= 1
    if p <= limit:
        return False
    blanks, p = 0, p - 2
    limit = max(lo, p - MAX_FIELD_BYTES)
    while p > limit and v[p] != 34 and v[p] != 10 and v[p] != 58:
        blanks += v[p] == 32
        p -= 1
    return blanks > 1


@inner
def is_a_line_of_a_table(v: np.ndarray, lo: int, hi: int, start: int, end: int) -> bool:
    """Whether this fills its line, and the line before holds numbers alone."""
    p = start
    while p > lo and v[p - 1] == 32:
        p -= 1
    if p == lo or v[p - 1] != 10 or (end < hi and v[end] != 10 and v[end] != 13):
        return False
    p -= 1
    digits, limit = 0, max(lo, p - MAX_TABLE_LINE)
    while p > limit and v[p - 1] != 10:
        c = v[p - 1]
        if is_any(c, DIGIT):
            digits += 1
        elif not (c == 32 or c == 13 or 44 <= c <= 46):
            return False
        p -= 1
    return digits > 0


@inner
def is_code_between(v: np.ndarray, hi: int, start: int, end: int, chars: int) -> bool:
    """Whether a sign of code stands between the word, at most so many bytes before, and the number,
    or tabs on both sides of it: call setline(1, '3234567890'), N ring ; B 48 568 225 776."""
    if end < hi and v[end] == 9 and chars > 0 and v[start - 1] == 9:
        return True
    for p in range(start - chars, start):
        if contains(_CODE_SIGNS, np.uint64(v[p])):
            return True
        # A parenthesis after a name holds arguments.
        if v[p] == 40 and (is_any(v[p - 1], ALNUM) or v[p - 1] == 95):
            return True
    return False


@inner
def is_below_bytes(v: np.ndarray, lo: int, start: int) -> bool:
    """Whether the line before ends with six pairs of hexadecimal digits, more than the five of a
    number."""
    p, limit = start, max(lo, start - MAX_FIELD_BYTES)
    while p > limit and contains(_INDENTS, np.uint64(v[p - 1])):
        p -= 1
    for _ in range(6):
        if p - 3 < lo or not (is_any(v[p - 1], HEX) and is_any(v[p - 2], HEX)):
            return False
        if is_any(v[p - 3], ALNUM):
            return False
        p -= 3
    return True


@inner
def is_in_braces(v: np.ndarray, lo: int, start: int, chars: int) -> bool:
    """Whether a brace opens before the number, and the word that tells of it is more characters
    back than \\phone{212 555 0199} or {phone}{212 555 0199} has: xywh {258 158 50 24}."""
    return start > lo and v[start - 1] == 123 and chars > 2


@inner
def is_part_of_a_name(v: np.ndarray, hi: int, end: int) -> bool:
    """Whether a hyphen joins a word to the digits before `end`, as in 01123965-Tube, and the word
    has no number of its own, as in 98765432-Ext 12."""
    if end + 1 >= hi or v[end] != 45 or not is_any(v[end + 1], ALPHA):
        return False
    p, limit = end + 1, min(hi - 2, end + 12)
    while p < limit and is_any(v[p], ALPHA):
        p += 1
    while p < limit and (v[p] == 46 or v[p] == 58 or v[p] == 32):
        p += 1
    return not (is_any(v[p], DIGIT) and not is_any(v[p - 1], ALPHA))


@inner
def is_behind_a_state(v: np.ndarray, lo: int, i: int) -> bool:
    """Whether two capitals stand before i, as in "Carmella, MI 02061-1971"."""
    if i - 4 < lo or v[i - 1] != 32 or is_any(v[i - 4], ALPHA):
        return False
    return is_any(v[i - 2], UPPER) and is_any(v[i - 3], UPPER)


@inner
def is_escape(v: np.ndarray, hi: int, i: int) -> bool:
    """Whether the per cent sign at i begins a byte of a URL, as in tel=2125552368%20."""
    return i + 2 < hi and is_any(v[i + 1], HEX) and is_any(v[i + 2], HEX)

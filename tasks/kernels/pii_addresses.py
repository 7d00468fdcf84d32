"""Does an IP address stand here?

Version 4 is final here; of version 6 only the shape. Vetoed: versions, sections, object ids, masks, places on every machine.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels.pii_bytes import ALPHA, DIGIT, HEX, contains, helper, is_any, pack, packed

_NO_IP = packed(
    "v ver version versions standard standards release released rel section sections sec sect chapter clause appendix oid "
    "build rev revision"
)
_BRIDGES = packed("to from is was and number no nr")


@helper
def ip4(v: np.ndarray, lo: int, hi: int, i: int) -> int:
    """End of the IPv4 address that begins at the digit i, or -1."""
    end = _octets(v, i, hi)
    if end < 0:
        return -1
    # 0.x, 127.x and 255.x are places on every machine and masks: they say nothing about anybody.
    if v[i + 1] == 46 and v[i] == 48:
        return -1
    if v[i + 3] == 46 and (
        (v[i] == 49 and v[i + 1] == 50 and v[i + 2] == 55) or (v[i] == 50 and v[i + 1] == 53 and v[i + 2] == 53)
    ):
        return -1
    if end < hi:
        c = v[end]
        if is_any(c, ALPHA) or c == 95 or (end + 1 < hi and c == 46 and is_any(v[end + 1], DIGIT)):
            return -1
        joined = c == 45 or c == 43 or c == 126
        if joined and end + 1 < hi and is_any(v[end + 1], DIGIT | ALPHA) and not (c == 45 and _octets(v, end + 1, hi) > 0):
            return -1
    if i > lo:
        c = v[i - 1]
        if is_any(c, ALPHA | DIGIT) or c == 46 or c == 95:
            return -1
        if i - 1 > lo:
            b = v[i - 2]
            if (c == 45 or c == 43 or c == 126) and is_any(b, ALPHA | DIGIT) and not _quad_before(v, lo, i - 1):
                return -1
            if c == 47 and is_any(b, ALPHA | DIGIT):
                return -1
    return -1 if _is_numbering(v, lo, i) else end


@helper
def _octets(v: np.ndarray, i: int, hi: int) -> int:
    """End of a dotted quad at i whose octets are in range, or -1."""
    for part in range(4):
        j, value = i, 0
        while j < hi and j < i + 4 and is_any(v[j], DIGIT):
            value = value * 10 + (v[j] - 48)
            j += 1
        if j == i or j - i > 3 or value > 255 or (j - i > 1 and v[i] == 48):
            return -1
        if part < 3:
            if j >= hi or v[j] != 46:
                return -1
            i = j + 1
        else:
            i = j
    return i


@helper
def _quad_before(v: np.ndarray, lo: int, end: int) -> bool:
    """Does a dotted quad end here, as in a range of addresses?"""
    for start in range(max(lo, end - 15), end - 6):
        if (start == lo or not is_any(v[start - 1], DIGIT)) and is_any(v[start], DIGIT) and _octets(v, start, end) == end:
            return True
    return False


@helper
def _is_numbering(v: np.ndarray, lo: int, i: int) -> bool:
    """Is what stands before i a word or sign that counts versions, sections or objects?"""
    j = _skip_back(v, i, lo, False)
    if j - 2 >= lo and v[j - 2] == 0xC2 and (v[j - 1] == 0xA7 or v[j - 1] == 0xA0):
        return v[j - 1] == 0xA7 or (j - 4 >= lo and v[j - 4] == 0xC2 and v[j - 3] == 0xA7)
    # >=, ==, ~=, != and the like compare versions; < and > are one sign, so that tags and their places act alike.
    if j - 2 >= lo and v[j - 1] == 61:
        b = v[j - 2]
        if b == 61 or b == 60 or b == 62 or b == 126 or b == 33:
            return True
    for _ in range(4):  # "Standards-Version to 4.6.0.1": small words lead to the one that tells
        k = _skip_back(v, i, lo, True)
        if k > lo and v[k - 1] == 46:  # "Sec. 4.2.2.1"
            k -= 1
        i = k
        while i > lo and k - i <= 9 and is_any(v[i - 1], ALPHA):
            i -= 1
        word = pack(v, i, k)
        if i < k and contains(_NO_IP, word):
            return True
        if i == k or not contains(_BRIDGES, word):
            return False
    return False


@helper
def _skip_back(v: np.ndarray, i: int, lo: int, signs: bool) -> int:
    """Back over at most four blanks, quotes and parentheses, and over colons and equals signs where asked."""
    limit = max(lo, i - 4)
    while i > limit:
        c = v[i - 1]
        if not (c == 32 or c == 40 or c == 34 or c == 39 or (signs and (c == 58 or c == 61))):
            break
        i -= 1
    return i


@helper
def ip6(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The shape of an IPv6 address whose first colon is at i, as (start, end), or (-1, -1)."""
    start = i
    while start > lo and i - start < 5 and is_any(v[start - 1], HEX):
        start -= 1
    if i - start > 4 or (start == i and not (i + 1 < hi and v[i + 1] == 58)):
        return -1, -1
    if start > lo and (is_any(v[start - 1], ALPHA | DIGIT) or v[start - 1] == 58 or v[start - 1] == 95 or v[start - 1] == 46):
        return -1, -1
    end, colons, digits, hexes = start, 0, 0, 0
    while end < hi and end - start < 46 and (is_any(v[end], HEX) or v[end] == 58 or v[end] == 46):
        colons += v[end] == 58
        digits += is_any(v[end], DIGIT)
        hexes += is_any(v[end], HEX)
        end += 1
    while end > start and (v[end - 1] == 46 or (v[end - 1] == 58 and v[end - 2] != 58)):
        end -= 1
    # Names of code (a::b) have the same shape: ask for digits and for length.
    if colons < 2 or digits < 1 or hexes < 5 or end - start > 45:
        return -1, -1
    if end < hi and (is_any(v[end], ALPHA | DIGIT) or v[end] == 95):
        return -1, -1
    return start, end

"""Where could personal data be? Candidates from trigger bytes and bounded look-around, over Arrow text buffers.

A digit, `@` or `:` triggers a look to both sides, never further than `MAX_LOOK_BYTES`, so time is linear in the text
whatever it holds. Each trigger judges alone: candidates may overlap, and `tasks.pii` resolves them. `<` and `>` stop
every look-around, so a found span that is overwritten by them acts exactly as the tag that will replace it.

Kinds: EMAIL, IP4 and CARD are final here; IP6, PHONE (international) and LOCAL_PHONE are shapes that `tasks.pii`
validates. Vetoes keep what only looks alike: user@host in URLs and scp paths, scoped packages, image@2x.png,
versions, sections, OIDs, decimals and longer digit runs.

One file on purpose: Numba's cache watches the file of the function it was asked for, not those of its helpers.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

EMAIL, IP4, IP6, CARD, PHONE, LOCAL_PHONE = range(6)
MAX_LOOK_BYTES = 512

MAX_LOCAL_BYTES = 64
MAX_DOMAIN_BYTES = 253
MAX_TLD_BYTES = 24
MAX_PHONE_BYTES = 40

_DIGIT, _ALPHA, _LOCAL, _HEX = 1, 2, 4, 8
_CLASS = np.zeros(256, np.uint8)
_CLASS[ord("0") : ord("9") + 1] = _DIGIT | _LOCAL | _HEX
_CLASS[ord("a") : ord("z") + 1] = _ALPHA | _LOCAL
_CLASS[ord("A") : ord("Z") + 1] = _ALPHA | _LOCAL
_CLASS[ord("a") : ord("f") + 1] |= _HEX
_CLASS[ord("A") : ord("F") + 1] |= _HEX
for _c in "._%+-'":
    _CLASS[ord(_c)] |= _LOCAL


def _packed(words: str) -> np.ndarray:
    """The last eight letters of words as integers, to be found without strings."""
    return np.array([int.from_bytes(word.encode()[-8:], "big") for word in words.split()], np.uint64)


# What follows an @ but ends in one of these is a file or a systemd unit.
_NO_TLD = _packed(
    "png jpg jpeg gif svg webp ico css js mjs ts tsx json html htm php xml yml yaml txt pdf gz bz2 xz deb rpm "
    "service socket timer target mount slice scope swap path device"
)
_COMMON_TLD = _packed(
    "com org net edu gov mil int info biz io ai app dev cn de uk fr jp ru br in it nl eu es se ch au ca us kr tw hk at be pl"
)
_NO_IP = _packed(
    "v ver version versions standard standards release released rel section sections sec sect chapter clause appendix oid "
    "build rev revision"
)
_BRIDGES = _packed("to from is was and number no nr")

# Helpers are called from compiled code alone: without entry points for Python they compile in half the time.
_HELPER: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_njit = numba.njit(**_HELPER)


@_njit
def _is(c: int, mask: int) -> bool:
    return (_CLASS[c] & mask) != 0


@_njit
def _contains(words: np.ndarray, word: np.uint64) -> bool:
    for known in words:  # noqa: SIM110 (a generator does not compile; a few dozen words, asked for once in a candidate)
        if known == word:
            return True
    return False


@_njit
def _pack(v: np.ndarray, start: int, end: int) -> np.uint64:
    """The last eight bytes of v[start:end] as one integer, letters in lower case."""
    word = np.uint64(0)
    for i in range(start, end):
        word = (word << np.uint64(8)) | np.uint64(v[i] | 32 if _is(v[i], _ALPHA) else v[i])
    return word


@_njit
def _letter_before(v: np.ndarray, i: int, lo: int, wide: bool) -> int:
    """Start of the non-ASCII letter that ends at i, or -1. Wide letters (CJK and the like) only where asked for."""
    j = i - 1
    while j > lo and i - j < 4 and (v[j] & 0xC0) == 0x80:
        j -= 1
    return j if _letter_bytes(v, j, i, wide) == i - j else -1


@_njit
def _letter_bytes(v: np.ndarray, i: int, hi: int, wide: bool) -> int:
    """Length of the non-ASCII letter at i, or 0. Punctuation and symbols of common blocks are no letters."""
    c = v[i]
    if 0xC3 <= c <= 0xDF and i + 2 <= hi:
        return 0 if c == 0xC3 and (v[i + 1] == 0x97 or v[i + 1] == 0xB7) else 2
    if wide and 0xE0 <= c <= 0xED and c != 0xE2 and i + 3 <= hi:
        return 0 if c == 0xE3 and v[i + 1] == 0x80 else 3
    return 0


@_njit
def _email(v: np.ndarray, lo: int, hi: int, at: int) -> tuple[int, int]:
    """The e-mail address around the @ at `at`, as (start, end), or (-1, -1)."""
    none = (-1, -1)
    start = _local_part(v, lo, at)
    if start == at or v[at - 1] == 46 or _in_url(v, lo, start):
        return none
    end = _domain(v, hi, at)
    if end < 0:
        return none
    first = at + 1
    while first < end and v[first] != 46:
        first += 1
    scoped = start > lo and v[start - 1] == 47 and _is(v[at + 1], _DIGIT)
    if scoped or (_all_digits(v, at + 1, first) and first + 1 < end and _is(v[first + 1], _DIGIT)):
        return none
    dot = end - 1
    while v[dot] != 46:
        dot -= 1
    tld = _pack(v, dot + 1, end)
    if _contains(_NO_TLD, tld):
        return none
    if end < hi:
        # A@B.dot(C) is a product of matrices; user@host.com:path/file is a place to copy from.
        if (v[end] == 40 or v[end] == 91) and not _contains(_COMMON_TLD, tld):
            return none
        if v[end] == 58 and _is_scp_path(v, end + 1, hi):
            return none
    return start, end


@_njit
def _local_part(v: np.ndarray, lo: int, at: int) -> int:
    limit = max(lo, at - MAX_LOCAL_BYTES)
    i = at
    wide = at > lo and _letter_before(v, at, limit, False) < 0 and _letter_before(v, at, limit, True) >= 0
    while i > limit:
        if v[i - 1] < 128:
            if not _is(v[i - 1], _LOCAL) or (v[i - 1] == 46 and i < at and v[i] == 46):
                break
            i -= 1
        else:
            j = _letter_before(v, i, limit, wide)
            if j < 0:
                break
            i = j
    while i < at and v[i] < 128 and not _is(v[i], _DIGIT | _ALPHA) and v[i] != 95:
        i += 1
    return i


@_njit
def _in_url(v: np.ndarray, lo: int, start: int) -> bool:
    """Is this the user in scheme://user:password@host?"""
    i = start
    limit = max(lo, start - MAX_LOCAL_BYTES)
    while i > limit and (_is(v[i - 1], _LOCAL) or v[i - 1] == 58):
        i -= 1
    return i - 3 >= lo and v[i - 1] == 47 and v[i - 2] == 47 and v[i - 3] == 58


@_njit
def _domain(v: np.ndarray, hi: int, at: int) -> int:
    """End of the host name after the @, or -1: at least two labels, the last of letters."""
    limit = min(hi, at + 1 + MAX_DOMAIN_BYTES)
    i = at + 1
    wide = i < limit and v[i] >= 128 and _letter_bytes(v, i, limit, False) == 0
    while i < limit:
        c = v[i]
        if c < 128:
            if not (_is(c, _DIGIT | _ALPHA) or c == 45 or c == 46) or (c == 46 and v[i - 1] == 46) or (c == 46 and i == at + 1):
                break
            i += 1
        else:
            n = _letter_bytes(v, i, limit, wide)
            if n == 0:
                break
            i += n
    end = i
    # Drop labels from the right until the last one can be a top-level domain.
    while True:
        dot = end - 1
        while dot > at and v[dot] != 46:
            dot -= 1
        if dot <= at:
            return -1
        tld_end = _tld(v, dot + 1, end)
        if tld_end > 0:
            return tld_end
        end = dot


@_njit
def _tld(v: np.ndarray, start: int, end: int) -> int:
    """End of the top-level domain at `start`, or -1. `org-based` ends after `org`."""
    letters = start
    while letters < end and (v[letters] >= 128 or _is(v[letters], _ALPHA)):
        letters += 1
    if letters - start < 2 or letters - start > MAX_TLD_BYTES:
        return -1
    if letters == end or v[letters] == 45:
        punycode = letters - start == 2 and letters + 1 < end and v[letters + 1] == 45
        return end if punycode else letters
    return -1


@_njit
def _is_scp_path(v: np.ndarray, i: int, hi: int) -> bool:
    limit = min(hi, i + 128)
    if i >= limit or not (_is(v[i], _DIGIT | _ALPHA) or v[i] == 126 or v[i] == 47 or v[i] == 46):
        return False
    slash = False
    while i < limit and v[i] > 32 and v[i] != 34 and v[i] != 39 and v[i] != 60 and v[i] != 62:
        if v[i] == 47:
            if v[i - 1] == 58 and i + 1 < limit and v[i + 1] == 47:
                return False
            slash = True
        i += 1
    return slash or (v[i - 4] == 46 and v[i - 3] == 103 and v[i - 2] == 105 and v[i - 1] == 116)


@_njit
def _all_digits(v: np.ndarray, start: int, end: int) -> bool:
    for i in range(start, end):
        if not _is(v[i], _DIGIT):
            return False
    return end > start


@_njit
def _octets(v: np.ndarray, i: int, hi: int) -> int:
    """End of a dotted quad at i whose octets are in range, or -1."""
    for part in range(4):
        j, value = i, 0
        while j < hi and j < i + 4 and _is(v[j], _DIGIT):
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


@_njit
def _ip4(v: np.ndarray, lo: int, hi: int, i: int) -> int:
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
        if _is(c, _ALPHA) or c == 95 or (end + 1 < hi and c == 46 and _is(v[end + 1], _DIGIT)):
            return -1
        joined = c == 45 or c == 43 or c == 126
        if joined and end + 1 < hi and _is(v[end + 1], _DIGIT | _ALPHA) and not (c == 45 and _octets(v, end + 1, hi) > 0):
            return -1
    if i > lo:
        c = v[i - 1]
        if _is(c, _ALPHA | _DIGIT) or c == 46 or c == 95:
            return -1
        if i - 1 > lo:
            b = v[i - 2]
            if (c == 45 or c == 43 or c == 126) and _is(b, _ALPHA | _DIGIT) and not _quad_before(v, lo, i - 1):
                return -1
            if c == 47 and _is(b, _ALPHA | _DIGIT):
                return -1
    return -1 if _is_numbering(v, lo, i) else end


@_njit
def _quad_before(v: np.ndarray, lo: int, end: int) -> bool:
    """Does a dotted quad end here, as in a range of addresses?"""
    for start in range(max(lo, end - 15), end - 6):
        if (start == lo or not _is(v[start - 1], _DIGIT)) and _is(v[start], _DIGIT) and _octets(v, start, end) == end:
            return True
    return False


@_njit
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
        while i > lo and k - i <= 9 and _is(v[i - 1], _ALPHA):
            i -= 1
        word = _pack(v, i, k)
        if i < k and _contains(_NO_IP, word):
            return True
        if i == k or not _contains(_BRIDGES, word):
            return False
    return False


@_njit
def _skip_back(v: np.ndarray, i: int, lo: int, signs: bool) -> int:
    """Back over at most four blanks, quotes and parentheses, and over colons and equals signs where asked."""
    limit = max(lo, i - 4)
    while i > limit:
        c = v[i - 1]
        if not (c == 32 or c == 40 or c == 34 or c == 39 or (signs and (c == 58 or c == 61))):
            break
        i -= 1
    return i


@_njit
def _ip6(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The shape of an IPv6 address whose first colon is at i, as (start, end), or (-1, -1)."""
    start = i
    while start > lo and i - start < 5 and _is(v[start - 1], _HEX):
        start -= 1
    if i - start > 4 or (start == i and not (i + 1 < hi and v[i + 1] == 58)):
        return -1, -1
    if start > lo and (_is(v[start - 1], _ALPHA | _DIGIT) or v[start - 1] == 58 or v[start - 1] == 95 or v[start - 1] == 46):
        return -1, -1
    end, colons, digits, hexes = start, 0, 0, 0
    while end < hi and end - start < 46 and (_is(v[end], _HEX) or v[end] == 58 or v[end] == 46):
        colons += v[end] == 58
        digits += _is(v[end], _DIGIT)
        hexes += _is(v[end], _HEX)
        end += 1
    while end > start and (v[end - 1] == 46 or (v[end - 1] == 58 and v[end - 2] != 58)):
        end -= 1
    # Names of code (a::b) have the same shape: ask for digits and for length.
    if colons < 2 or digits < 1 or hexes < 5 or end - start > 45:
        return -1, -1
    if end < hi and (_is(v[end], _ALPHA | _DIGIT) or v[end] == 95):
        return -1, -1
    return start, end


@_njit
def _digits_end(v: np.ndarray, i: int, hi: int, most: int) -> int:
    j = i
    while j < hi and j - i <= most and _is(v[j], _DIGIT):
        j += 1
    return j


@_njit
def _card(v: np.ndarray, lo: int, hi: int, i: int) -> int:
    """End of the card number that begins at the digit i, or -1: shape, issuer, Luhn, and no longer row of numbers."""
    if i > lo:
        c = v[i - 1]
        if _is(c, _ALPHA | _DIGIT) or c == 46 or c == 95 or c == 43:
            return -1
        if c == 45 and i - 1 > lo and _is(v[i - 2], _ALPHA | _DIGIT):
            return -1
    ends = np.zeros(8, np.int64)
    sizes = np.zeros(8, np.int64)
    count, j, separator = 0, i, np.uint8(0)
    while count < 8:
        k = _digits_end(v, j, hi, 19)
        if k == j or k - j > 19:
            break
        ends[count], sizes[count] = k, k - j
        count += 1
        if k + 1 >= hi or (v[k] != 32 and v[k] != 45) or (count > 1 and v[k] != separator) or not _is(v[k + 1], _DIGIT):
            break
        separator = v[k]
        j = k + 1
    for groups in (5, 4, 3, 1):
        if groups > count or not _card_shape(sizes, groups):
            continue
        end = ends[groups - 1]
        if end < hi:
            c = v[end]
            if _is(c, _ALPHA | _DIGIT) or c == 95 or (end + 1 < hi and c == 46 and _is(v[end + 1], _DIGIT)):
                continue
            if c == 45 and end + 1 < hi and _is(v[end + 1], _DIGIT | _ALPHA):
                continue
        if count - groups + _groups_before(v, lo, i) <= 1 and _is_card_number(v, i, end):
            return end
    return -1


@_njit
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


@_njit
def _groups_before(v: np.ndarray, lo: int, i: int) -> int:
    """How many groups of digits, at most three, stand before i with a blank between."""
    count = 0
    while count < 3 and i - 2 >= lo and v[i - 1] == 32 and _is(v[i - 2], _DIGIT):
        i -= 1
        limit = max(lo, i - 20)
        while i > limit and _is(v[i - 1], _DIGIT):
            i -= 1
        count += 1
    return count


@_njit
def _is_card_number(v: np.ndarray, start: int, end: int) -> bool:
    total, length, prefix = 0, 0, 0
    for j in range(end - 1, start - 1, -1):
        if _is(v[j], _DIGIT):
            digit = v[j] - np.int64(48)
            if length % 2 == 1:
                digit = digit * 2 - 9 if digit > 4 else digit * 2
            total += digit
            length += 1
    if total % 10 != 0:
        return False
    taken, j = 0, start
    while taken < 4:
        if _is(v[j], _DIGIT):
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


@_njit
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


@_njit
def _phone_end(v: np.ndarray, i: int, hi: int, fewest: int, most: int) -> tuple[int, int]:
    """End of the longest row of digit groups from i with `fewest` to `most` digits, and its number of groups, or (-1, 0)."""
    best, best_groups, digits, groups = -1, 0, 0, 0
    limit = min(hi, i + MAX_PHONE_BYTES)
    while i < limit:
        j = _digits_end(v, i, limit, most)
        digits += j - i
        if digits > most or j == i or (j == limit and limit < hi):
            break
        groups += 1
        # A digit group that a letter ends is a name or a code, except for an extension.
        named = j < hi and (_is(v[j], _ALPHA) or v[j] == 95) and v[j] != 120
        if digits >= fewest and not named:
            best, best_groups = j, groups
        i = j
        for _ in range(2):
            if i < limit:
                i += _separator_bytes(v, i, limit)
        if i == j or named:
            break
    return best, best_groups


@_njit
def _phone(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The shape of an international phone number whose + stands before the digit i, as (start, end), or (-1, -1)."""
    plus = i - 1
    if plus > lo and (_is(v[plus - 1], _ALPHA | _DIGIT) or v[plus - 1] == 43 or v[plus - 1] == 95):
        return -1, -1
    end, _ = _phone_end(v, i, hi, 7, 15)
    return (plus, end) if end > 0 and v[i] != 48 else (-1, -1)


@_njit
def _local_phone(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The shape of a national phone number that begins at the digit i, as (start, end), or (-1, -1)."""
    start = i - 1 if i > lo and v[i - 1] == 40 else i
    if start > lo:
        c = v[start - 1]
        if _is(c, _ALPHA | _DIGIT) or c == 46 or c == 45 or c == 47 or c == 95 or c == 43 or c == 36 or c == 37:
            return -1, -1
        if start - 1 > lo and _is(v[start - 2], _DIGIT) and (c == 58 or c == 44 or (c == 32 and _blank_follows(v, i, hi))):
            return -1, -1
    end, groups = _phone_end(v, i, hi, 9, 12)
    return (start, end) if end > 0 and groups >= 2 else (-1, -1)


@_njit
def _blank_follows(v: np.ndarray, i: int, hi: int) -> bool:
    j = _digits_end(v, i, hi, 12)
    return j < hi and v[j] == 32


@numba.njit(cache=True, nogil=True, error_model="numpy")
def find_candidates(values: np.ndarray, lo: np.ndarray, hi: np.ndarray, scan_lo: np.ndarray, scan_hi: np.ndarray) -> np.ndarray:
    """Candidates whose trigger is in [scan_lo, scan_hi) of each range, judged within [lo, hi), in order of triggers.

    A flat int64 array, four numbers a candidate: range number, start, end, kind.
    """
    found = np.empty(1024, np.int64)
    count = 0
    for r in range(len(lo)):
        low, high = lo[r], hi[r]
        for i in range(scan_lo[r], scan_hi[r]):
            c = values[i]
            if c > 64 or c < 48 or (58 < c < 64):
                continue
            if count + 16 > len(found):
                found = _grown(found, count)
            if c == 64:
                start, end = _email(values, low, high, i)
                count = _put(found, count, r, start, end, EMAIL)
            elif c == 58:
                start, end = _ip6(values, low, high, i)
                count = _put(found, count, r, start, end, IP6)
            elif i == low or not _is(values[i - 1], _DIGIT):
                count = _put(found, count, r, i, _ip4(values, low, high, i), IP4)
                count = _put(found, count, r, i, _card(values, low, high, i), CARD)
                if i > low and values[i - 1] == 43:
                    start, end = _phone(values, low, high, i)
                    count = _put(found, count, r, start, end, PHONE)
                else:
                    start, end = _local_phone(values, low, high, i)
                    count = _put(found, count, r, start, end, LOCAL_PHONE)
    return found[:count]


@_njit
def _put(found: np.ndarray, count: int, number: int, start: int, end: int, kind: int) -> int:
    if end < 0:
        return count
    found[count], found[count + 1], found[count + 2], found[count + 3] = number, start, end, kind
    return count + 4


@_njit
def _grown(found: np.ndarray, count: int) -> np.ndarray:
    # By element: assigning slices would compile the formatting of shape errors, for seconds.
    grown = np.empty(2 * len(found), np.int64)
    for i in range(count):
        grown[i] = found[i]
    return grown

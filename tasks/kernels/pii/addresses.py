"""Recognises the addresses of machines.

IPv4 and MAC are final here; of IPv6 first the shape, then `are_ip6`. Vetoed: versions, sections and
references to them, object ids, masks, places on every machine, fingerprints (more than six pairs).
"""

from __future__ import annotations

import numba
import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, ALPHA, DIGIT, HEX, UPPER, contains, is_any, pack, packed
from tasks.kernels.pii.context import is_counted, is_numbering
from tasks.kernels.pii.labels import ADDRESS, CALL, CARD, NAME, label_before
from tasks.kernels.text.addresses import pointers

MAX_SECTION, MAX_LOW = 40, 64
MAX_ADDRESS_CHARS = 24
MAX_LIST_BYTES = 64
_RESOLVERS = packed("8.8.8.8 8.8.4.4 1.1.1.1 1.0.0.1 9.9.9.9 4.2.2.1 4.2.2.2")
_NOT_OF_ADDRESSES = 1 << NAME | 1 << CALL | 1 << CARD
_MASKS = packed("128.0.0.0 192.0.0.0")
"""Masks that begin like an address; all other ones begin from 224 on."""
_EDGES = np.frombuffer(b"\n\r<>|", np.uint8).astype(np.uint64)  # of lines, elements and cells
_REFERENCES = packed(
    "section sections sec sect clause clauses chapter chapters appendix paragraph see cf"
)
_JOINTS = packed("and or to through also")
_ARCS = packed("1.3. 2.5. 2.16")  # organisations, X.500, countries


@inner
def ip4(v: np.ndarray, lo: int, hi: int, i: int) -> int:
    """End of the IPv4 address that begins at the digit i, or -1."""
    if i - 1 > lo and is_any(v[i - 2], ALNUM):
        c = v[i - 1]
        # boost/1.74.0.1, Get\1.0.0.1, Android.11.0.200.245 and %209.7.51.51 are names.
        if c == 47 or c == 92 or c == 46 or c == 37:
            return -1
        if (c == 45 or c == 43 or c == 126) and not _quad_before(v, lo, i - 1):
            return -1
    end = _octets(v, i, hi)
    if end < 0:
        return -1
    # Places on every machine (0.x, 127.x), groups and masks (from 224 on), and arcs of object ids
    # say nothing about anybody.
    first, dot = 0, i
    while v[dot] != 46:
        first, dot = first * 10 + (v[dot] - np.int64(48)), dot + 1
    if first == 0 or first == 127 or first >= 224 or contains(_ARCS, pack(v, i, i + 4)):
        return -1
    if end - i == 9 and contains(_MASKS, pack(v, i, end)):
        return -1
    if end < hi:
        c = v[end]
        if is_any(c, ALPHA) or c == 95 or (end + 1 < hi and c == 46 and is_any(v[end + 1], DIGIT)):
            return -1
        # 6.74.39.45-.77 is cut from the path of a drawing.
        joined = (c == 45 or c == 43 or c == 126) and end + 1 < hi
        joined = joined and (is_any(v[end + 1], ALNUM) or v[end + 1] == 46)
        if joined and not (c == 45 and _octets(v, end + 1, hi) > 0):
            return -1
    if is_numbering(v, lo, i) or is_counted(v, hi, end) or _is_last_version(v, lo, i, end):
        return -1
    small = _is_small(v, i, end)
    if small and (_is_heading(v, lo, hi, i, end) or _is_referred(v, lo, i)):
        return -1
    # Versions and sections have small numbers, one address in two hundred has.
    if first != 10 and _is_low(v, i, end) and not _is_known(v, i, end):
        return end if _is_addressed(v, lo, hi, i, end) else -1
    return end


@inner
def _is_last_version(v: np.ndarray, lo: int, i: int, end: int) -> bool:
    """Whether the first three numbers stand alone before, as in a list of names of a version:
    26.5.7, 26.5.7.64."""
    size = end - i - 1
    while v[i + size] != 46:
        size -= 1
    limit = max(lo, i - MAX_LIST_BYTES)
    k = i - 1
    while k > limit and v[k] != 60 and v[k] != 62 and v[k] != 42:
        if v[k] == v[i] and k + size < i and not (is_any(v[k - 1], DIGIT) or v[k - 1] == 46):
            n = 0
            while n < size and v[k + n] == v[i + n]:
                n += 1
            if n == size and not (is_any(v[k + n], DIGIT) or v[k + n] == 46):
                return True
        k -= 1
    return False


@inner
def _is_low(v: np.ndarray, i: int, end: int) -> bool:
    """Whether all four numbers are below `MAX_LOW`."""
    value = 0
    for j in range(i, end + 1):
        if j < end and v[j] != 46:
            value = value * 10 + (v[j] - np.int64(48))
        elif value >= MAX_LOW:
            return False
        else:
            value = 0
    return True


@inner
def _is_known(v: np.ndarray, i: int, end: int) -> bool:
    """Whether this is a public resolver of names, which everybody writes without words."""
    return end - i == 7 and contains(_RESOLVERS, pack(v, i, end))


@inner
def _is_addressed(v: np.ndarray, lo: int, hi: int, i: int, end: int) -> bool:
    """Whether signs or the nearest word say that this is an address: [1.2.3.4], //1.2.3.4,
    1.2.3.4:80, 1.2.3.4/24. A sign @ stands before versions, too: sudo@1.8.4.1."""
    if i > lo:
        c = v[i - 1]
        closed = end < hi and (v[end] == 93 or v[end] == 58)
        if (c == 91 and closed) or (c == 47 and i - 1 > lo and v[i - 2] == 47):
            return True
    if end + 1 < hi and (v[end] == 58 or v[end] == 47) and is_any(v[end + 1], DIGIT):
        return True
    label, chars, _ = label_before(v, lo, i, _NOT_OF_ADDRESSES)
    return label == ADDRESS and chars <= MAX_ADDRESS_CHARS


@inner
def _is_small(v: np.ndarray, i: int, end: int) -> bool:
    """Whether these four numbers may be those of a section: small, and none zero."""
    value = 0
    for j in range(i, end + 1):
        if j < end and v[j] != 46:
            value = value * 10 + (v[j] - np.int64(48))
        elif value == 0 or value >= MAX_SECTION:
            return False
        else:
            value = 0
    return True


@inner
def _is_referred(v: np.ndarray, lo: int, i: int) -> bool:
    """Whether running text refers to section i, also over the end of a line: "see 4.2.3.9",
    "Sections 3.2.2.9 and 3.3.1.1"."""
    joined = False
    for _ in range(8):
        limit = max(lo, i - 24)  # the indent of a wrapped line
        while i > limit and (
            v[i - 1] == 32 or (v[i - 1] >= 9 and v[i - 1] <= 13) or v[i - 1] == 40 or v[i - 1] == 44
        ):
            joined = joined or v[i - 1] == 44
            i -= 1
        k = i
        while joined and i > lo and k - i <= 15 and (is_any(v[i - 1], DIGIT) or v[i - 1] == 46):
            i -= 1
        if i < k:
            joined = False
            continue
        while i > lo and k - i <= 9 and is_any(v[i - 1], ALPHA):
            i -= 1
        word = pack(v, i, k)
        if i < k and contains(_REFERENCES, word):
            return True
        if i == k or not contains(_JOINTS, word):
            return False
        joined = True
    return False


@inner
def _is_heading(v: np.ndarray, lo: int, hi: int, i: int, end: int) -> bool:
    """Whether this begins a line, element or cell and a title follows, as behind the number of a
    section."""
    limit = max(lo, i - 64)
    while i > limit and (v[i - 1] == 32 or v[i - 1] == 9):
        i -= 1
    if end >= hi or (i > lo and not contains(_EDGES, np.uint64(v[i - 1]))):
        return False
    if v[end] == 46:
        return end + 1 >= hi or not is_any(v[end + 1], ALNUM)
    blanks = end
    while blanks < hi and blanks - end < 8 and v[blanks] == 32:
        blanks += 1
    if blanks == end or blanks >= hi:
        return False
    wide = v[blanks] >= 128 or v[blanks] == 124
    return wide or is_any(v[blanks], ALPHA if blanks - end > 1 else UPPER)


@inner
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


@inner
def _quad_before(v: np.ndarray, lo: int, end: int) -> bool:
    """Whether a dotted quad ends here, as in a range of addresses."""
    for start in range(max(lo, end - 15), end - 6):
        begins = is_any(v[start], DIGIT) and (start == lo or not is_any(v[start - 1], DIGIT))
        if begins and _octets(v, start, end) == end:
            return True
    return False


@inner
def ip6(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The shape of an IPv6 address whose first colon is at i, as (start, end), or (-1, -1)."""
    start = i
    while start > lo and i - start < 5 and is_any(v[start - 1], HEX):
        start -= 1
    if i - start > 4 or (start == i and not (i + 1 < hi and v[i + 1] == 58)):
        return -1, -1
    if start > lo:
        c = v[start - 1]
        if is_any(c, ALPHA | DIGIT) or c == 58 or c == 95 or c == 46:
            return -1, -1
    end, colons, digits, hexes, doubled = start, 0, 0, 0, False
    while end < hi and end - start < 46 and (is_any(v[end], HEX) or v[end] == 58 or v[end] == 46):
        if v[end] == 58:
            colons += 1
            doubled |= end > start and v[end - 1] == 58
        else:
            hexes += 1
            digits += is_any(v[end], DIGIT)
        end += 1
    while end > start and (v[end - 1] == 46 or (v[end - 1] == 58 and v[end - 2] != 58)):
        end -= 1
    # Names of code (a::b) and times have the same shape: ask for digits, length, and eight groups
    # or a gap.
    if digits == 0 or hexes < 5 or end - start > 45 or not (doubled or colons >= 6):
        return -1, -1
    if end < hi and (is_any(v[end], ALPHA | DIGIT) or v[end] == 95):
        return -1, -1
    # 6-Jul-2015::20:47:02, as Erlang writes it.
    clock = end - start == 14 and digits == 10 and i - start == 4 and v[i + 1] == 58
    if clock and start > lo and v[start - 1] == 45:
        return -1, -1
    return start, end


@inner
def mac(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The six pairs of hexadecimal digits whose first separator is at i, as (start, end), or (-1,
    -1)."""
    start, end, separator = i - 2, i + 15, v[i]
    if start < lo or end > hi:
        return -1, -1
    if start > lo:
        c = v[start - 1]
        if is_any(c, ALNUM) or c == 95 or c == separator:
            return -1, -1
    # An odd first byte addresses a group of machines, not one.
    if is_any(v[start + 1], DIGIT) == (v[start + 1] & 1 == 1):
        return -1, -1
    letters = 0
    for k in range(start, end):
        c = v[k]
        if (k - start) % 3 == 2:
            if c != separator:
                return -1, -1
        elif not is_any(c, HEX):
            return -1, -1
        letters += is_any(c, ALPHA)
    # 10-20-30-40-50-60 and 12:34:56:78:90:12 are rows of numbers: one card in 280 has digits alone.
    if letters == 0:
        return -1, -1
    if end < hi and (is_any(v[end], ALNUM) or v[end] == 95 or v[end] == separator):
        return -1, -1
    return start, end


@numba.njit(cache=True, nogil=True, error_model="numpy")
def are_ip6(v: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which words v[rows[:, 1]:rows[:, 2]] of hexadecimal digits, colons and dots are IPv6
    addresses (RFC 4291, section 2.2).

    Loopback, the address of all zeros, groups of machines and what IANA has given to nobody say
    nothing about anybody. Given are 2000::/3, fc00::/7, fe80::/10, the old fec0::/10, and ::/32 and
    64:ff9b::/32, in which addresses of IPv4 are embedded.
    """
    verdicts = np.zeros(len(rows), np.bool_)
    for r in range(len(rows)):
        verdicts[r] = _is_ip6(pointers(v), rows[r, 1], rows[r, 2])
    return verdicts


@inner
def _is_ip6(v: np.ndarray, i: int, end: int) -> bool:
    count, gap = 0, False
    first, second, others, last = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if v[i] == 58:  # only as a part of ::
        if i + 1 >= end or v[i + 1] != 58:
            return False
        i += 1
    while i < end:
        if v[i] == 58:  # the second one
            if gap:
                return False
            gap = True
            i += 1
            if i == end:
                others, last = others | last, np.int64(0)
                break
        value, j = np.int64(0), i
        # The last two groups as an IPv4 address.
        if (gap or count > 0) and _octets(v, i, end) == end:
            octet = np.int64(0)
            while j <= end:
                if j == end or v[j] == 46:
                    value, octet = value << 8 | octet, np.int64(0)
                else:
                    octet = octet * 10 + (v[j] - np.int64(48))
                j += 1
            others, value, count = others | value >> 16, value & 0xFFFF, count + 1
        else:
            while j < end and j < i + 5 and is_any(v[j], HEX):
                c = np.int64(v[j])
                value = value * 16 + (c - 48 if c < 65 else (c | 32) - 87)
                j += 1
            if j == i or j - i > 4 or (j < end and v[j] != 58) or j + 1 == end:
                return False
        if count == 0 and not gap:
            first = value
        elif count == 1 and not gap:
            second = value
        others, last, count, i = others | last, value, count + 1, j + 1
    if count > 8 or gap == (count == 8):
        return False
    # Where nothing is assigned stand names (abc::de12), rows of numbers (1:2:3:4:5:6:7:8) and pairs
    # (50:01:43:80:12:34:56:78).
    assigned = 0x2000 <= first < 0x4000 or 0xFC00 <= first < 0xFF00
    embedded = (first == 0 and second == 0) or (first == 0x64 and second == 0xFF9B)
    return bool((assigned or embedded) and (others != 0 or last > 1))

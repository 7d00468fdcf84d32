"""Recognises an e-mail address around an @.

Vetoed: users in URLs, places to copy from (host:path), scoped packages, image@2x.png, systemd
units.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALPHA, DIGIT, LOCAL, all_of, contains, is_any, pack, packed

MAX_LOCAL_BYTES = 64
MAX_DOMAIN_BYTES = 253
MAX_TLD_BYTES = 24

# What follows an @ but ends in one of these is a file or a systemd unit.
_NO_TLD = packed(
    "png jpg jpeg gif svg webp ico css js mjs ts tsx json html htm php xml yml yaml txt pdf gz bz2"
    " xz deb rpm service socket timer target mount slice scope swap path device"
)
_COMMON_TLD = packed(
    "com org net edu gov mil int info biz io ai app dev cn de uk fr jp ru br in it nl eu es se ch"
    " au ca us kr tw hk at be pl"
)


@inner
def may_be_email(v: np.ndarray, lo: int, hi: int, at: int) -> bool:
    """Whether an address may stand around the @ at `at`. Quick: @@ and decorators are many."""
    if at == lo or at + 3 >= hi or not (is_any(v[at - 1], LOCAL) or v[at - 1] >= 128):
        return False
    return is_any(v[at + 1], ALPHA | DIGIT) or v[at + 1] >= 128


@inner
def email(v: np.ndarray, lo: int, hi: int, at: int) -> tuple[int, int]:
    """The e-mail address around the @ at `at`, of which `may_be_email` holds, as (start, end), or
    (-1, -1)."""
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
    # node_modules/package@1.2.x, and something@1.2.3.deb.
    scoped = start > lo and v[start - 1] == 47 and is_any(v[at + 1], DIGIT)
    if scoped or (
        all_of(v, at + 1, first, DIGIT) and first + 1 < end and is_any(v[first + 1], DIGIT)
    ):
        return none
    dot = end - 1
    while v[dot] != 46:
        dot -= 1
    tld = pack(v, dot + 1, end)
    if contains(_NO_TLD, tld):
        return none
    if end < hi:
        # A@B.dot(C) is a product of matrices; user@host.com:path/file is a place to copy from.
        if (v[end] == 40 or v[end] == 91) and not contains(_COMMON_TLD, tld):
            return none
        if v[end] == 58 and _is_scp_path(v, end + 1, hi):
            return none
    return start, end


@inner
def _local_part(v: np.ndarray, lo: int, at: int) -> int:
    limit = max(lo, at - MAX_LOCAL_BYTES)
    i = at
    # Wide letters (CJK and the like), where words run together, only in addresses that have them
    # next to the @.
    wide = v[at - 1] >= 128 and at - _letter_before(v, at, limit) == 3
    while i > limit:
        if v[i - 1] < 128:
            if not is_any(v[i - 1], LOCAL) or (v[i - 1] == 46 and i < at and v[i] == 46):
                break
            i -= 1
        else:
            j = _letter_before(v, i, limit)
            if j < 0 or (i - j == 3 and not wide):
                break
            i = j
    while i < at and v[i] < 128 and not is_any(v[i], DIGIT | ALPHA) and v[i] != 95:
        i += 1
    return i


@inner
def _in_url(v: np.ndarray, lo: int, start: int) -> bool:
    """Whether this is the user in scheme://user:password@host."""
    i = start
    limit = max(lo, start - MAX_LOCAL_BYTES)
    while i > limit and (is_any(v[i - 1], LOCAL) or v[i - 1] == 58):
        i -= 1
    return i - 3 >= lo and v[i - 1] == 47 and v[i - 2] == 47 and v[i - 3] == 58


@inner
def _domain(v: np.ndarray, hi: int, at: int) -> int:
    """End of the host name after the @, or -1: at least two labels, the last of letters."""
    limit = min(hi, at + 1 + MAX_DOMAIN_BYTES)
    i = at + 1
    wide = i < limit and v[i] >= 128 and _letter_bytes(v, i, limit) == 3
    while i < limit:
        c = v[i]
        if c < 128:
            # A dot follows neither a dot nor the @.
            if c == 46 and (v[i - 1] == 46 or i == at + 1):
                break
            if not is_any(c, DIGIT | ALPHA) and c != 45 and c != 46:
                break
            i += 1
        else:
            n = _letter_bytes(v, i, limit)
            if n == 0 or (n == 3 and not wide):
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


@inner
def _tld(v: np.ndarray, start: int, end: int) -> int:
    """End of the top-level domain at `start`, or -1. `org-based` ends after `org`."""
    letters = start
    while letters < end and (v[letters] >= 128 or is_any(v[letters], ALPHA)):
        letters += 1
    if letters - start < 2 or letters - start > MAX_TLD_BYTES:
        return -1
    if letters == end or v[letters] == 45:
        punycode = letters - start == 2 and letters + 1 < end and v[letters + 1] == 45
        return end if punycode else letters
    return -1


@inner
def _is_scp_path(v: np.ndarray, i: int, hi: int) -> bool:
    limit = min(hi, i + 128)
    if i >= limit or not (is_any(v[i], DIGIT | ALPHA) or v[i] == 126 or v[i] == 47 or v[i] == 46):
        return False
    slash = False
    while i < limit and v[i] > 32 and v[i] != 34 and v[i] != 39 and v[i] != 60 and v[i] != 62:
        if v[i] == 47:
            if v[i - 1] == 58 and i + 1 < limit and v[i + 1] == 47:
                return False
            slash = True
        i += 1
    return slash or (v[i - 4] == 46 and v[i - 3] == 103 and v[i - 2] == 105 and v[i - 1] == 116)


@inner
def _letter_before(v: np.ndarray, i: int, lo: int) -> int:
    """Start of the non-ASCII letter that ends at i, or -1."""
    j = i - 1
    while j > lo and i - j < 4 and v[j] & 0xC0 == 0x80:
        j -= 1
    return j if j >= lo and _letter_bytes(v, j, i) == i - j else -1


@inner
def _letter_bytes(v: np.ndarray, i: int, hi: int) -> int:
    """Length of the non-ASCII letter at i, 3 for wide ones, or 0. Punctuation and symbols of common
    blocks are not letters."""
    c = v[i]
    if 0xC3 <= c <= 0xDF and i + 2 <= hi:
        return 0 if c == 0xC3 and (v[i + 1] == 0x97 or v[i + 1] == 0xB7) else 2
    if 0xE0 <= c <= 0xED and c != 0xE2 and i + 3 <= hi:
        return 0 if c == 0xE3 and v[i + 1] == 0x80 else 3
    return 0

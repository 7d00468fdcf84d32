"""Tells which values are secrets: passwords in URLs, and what is assigned to a name that says so.

After the rules that gitleaks (generic-api-key) and detect-secrets (BasicAuthDetector,
KeywordDetector) publish, with stricter values: a letter, a digit, and enough entropy, so that
placeholders, references and words stay. The span is the value alone.
"""

from __future__ import annotations

import numpy as np

from tasks.kernels import inner
from tasks.kernels.pii.bytes import (
    ALNUM,
    ALPHA,
    CLASS,
    DIGIT,
    TOKEN,
    UPPER,
    contains,
    is_any,
    pack,
    packed,
)
from tasks.kernels.pii.tokens import entropy_bits

MAX_USER_BYTES, MAX_VALUE_BYTES, MAX_NAME_BYTES = 64, 150, 60
MIN_PASSWORD_BYTES, MIN_VALUE_BYTES, MIN_TOKEN_BYTES = 5, 8, 16
MIN_VALUE_BITS, MIN_TOKEN_BITS = 2.7, 3.4
"""Bits per character of short and of long values. Eight random characters have at most three."""

_PLACEHOLDERS = packed(
    "password passwd passphrase pass secret token changeme example user username name login admin"
    " guest anonymous anon root test demo none null passwort kennwort motdepasse passord senha"
)
# The last eight letters of names; those of `token` and `key` need a long value.
_NAMES = packed("password passwd passphrase pwd secret")
_KEYS = packed(
    "token api_key apikey api-key cret_key cretkey cret-key cess_key cesskey cess-key auth_key"
    " authkey auth-key vate_key vatekey vate-key ning_key ningkey ount_key ountkey ared_key aredkey"
    " tion_key"
)
# What stands before `token` in names of places in a listing and of requests, which open nothing.
_NO_SECRETS = packed(
    "page next ublickey uation fication equest hange update action sync resume cursor"
)
# Parts of names of types and variables, which stand without quotes.
_NAME_PARTS = tuple(int.from_bytes(part, "big") for part in (b"Key", b"Tok", b"Sec", b"Typ"))
_IN_VALUES = np.zeros(256, np.uint8)
_TOKEN = packed("token")[0]
_IN_VALUES[33:127] = 1
_IN_VALUES[list(b"\"'`<>*\\(){}[]|,;")] = 0


@inner
def url_password(v: np.ndarray, lo: int, hi: int, i: int) -> tuple[int, int]:
    """The password in scheme://user:password@host whose first colon is at i, or (-1, -1)."""
    if i + 3 >= hi or v[i + 1] != 47 or v[i + 2] != 47 or i - 2 < lo or not is_any(v[i - 1], ALPHA):
        return -1, -1
    user = i + 3
    j, limit = user, min(hi, user + MAX_USER_BYTES)
    while j < limit and v[j] != 58 and _IN_VALUES[v[j]] and v[j] != 47 and v[j] != 64:
        j += 1
    if j >= limit or v[j] != 58:
        return -1, -1
    start = j + 1
    end, limit = start, min(hi, start + MAX_VALUE_BYTES)
    while end < limit and _IN_VALUES[v[end]] and v[end] != 47 and v[end] != 64:
        end += 1
    if end + 1 >= limit or v[end] != 64 or not (is_any(v[end + 1], ALNUM) or v[end + 1] == 91):
        return -1, -1
    if end - start < MIN_PASSWORD_BYTES or v[start] == 36 or v[start] == 37:
        return -1, -1
    letters = 0
    for k in range(start, end):
        if v[k] == 58:  # pserver:anoncvs
            return -1, -1
        letters += v[k] == 45 or v[k] == 95 or is_any(v[k], ALPHA)
    if letters == end - start:  # mot-de-passe, AccessToken
        return -1, -1
    word = pack(v, start, end)
    if contains(_PLACEHOLDERS, word) or word == pack(v, user, j) or _is_one_sign(v, start, end):
        return -1, -1
    return start, end


@inner
def assigned_secret(  # type: ignore[no-untyped-def]
    v: np.ndarray, lo: int, hi: int, i: int, counts: np.ndarray
) -> tuple[int, int]:
    """The value that the = or : at i gives to a name of a secret, or (-1, -1). counts: as in
    `entropy_bits`."""
    long_only = _name_kind(v, lo, i)
    if long_only == 0:
        return -1, -1
    start = i + 1
    if start < hi and ((v[i] == 58 and v[start] == 61) or (v[i] == 61 and v[start] == 62)):
        start += 1  # := and =>
    blanks = start
    while start < hi and start - blanks < 4 and v[start] == 32:
        start += 1
    if start >= hi:
        return -1, -1
    quote = v[start] if v[start] == 34 or v[start] == 39 or v[start] == 96 else np.uint8(0)
    start += 1 if quote > 0 else 0
    end, limit = start, min(hi, start + MAX_VALUE_BYTES)
    while end < limit and _IN_VALUES[v[end]] and not (v[end] == 38 and _is_pair(v, end, limit)):
        end += 1
    if end < hi and v[end] != 38:
        c = v[end]
        closed = c == quote if quote > 0 else c <= 32 or c == 44 or c == 59 or c == 34 or c == 39
        if not closed:
            return -1, -1
    while quote == 0 and end > start and (v[end - 1] == 46 or v[end - 1] == 58):
        end -= 1
    if quote == 0 and _has_name(v, start, end):
        return -1, -1
    is_uuid = end - start == 36 and v[start + 8] == 45 and v[start + 13] == 45
    if long_only == 3 and is_uuid:
        return -1, -1
    strong = _is_secret(v, start, end, long_only >= 2, counts)
    return (start, end) if strong else (-1, -1)


@inner
def _is_pair(v: np.ndarray, i: int, limit: int) -> bool:
    """Whether the & at i ends a value: &name= of a query, or &amp; of a page."""
    k = i + 1
    while k < limit and is_any(v[k], TOKEN):
        k += 1
    return k < limit and k > i + 1 and (v[k] == 61 or v[k] == 59)


@inner
def _has_name(v: np.ndarray, start: int, end: int) -> bool:
    """Whether a value holds a part of a name of code."""
    word = np.int64(0)
    for k in range(start, end):
        word = (word << 8 | np.int64(v[k])) & 0xFFFFFF
        if word in _NAME_PARTS:
            return True
    return False


@inner
def _name_kind(v: np.ndarray, lo: int, i: int) -> int:
    """1 where the name before i is that of a password, 2 of a key, 3 of a token, else 0."""
    k = i
    while k > lo and i - k < 3 and (v[k - 1] == 32 or v[k - 1] == 34 or v[k - 1] == 39):
        k -= 1
    if k == lo or not is_any(v[k - 1], ALPHA):
        return 0
    # The last letters of the names below.
    c = v[k - 1] | 32
    if c != 100 and c != 101 and c != 110 and c != 116 and c != 121:
        return 0
    # scheme://PASSWORD:… is a user.
    first = k
    while first > lo and k - first < MAX_NAME_BYTES and is_any(v[first - 1], TOKEN):
        first -= 1
    if first - 2 >= lo and v[first - 1] == 47 and v[first - 2] == 47:
        return 0
    word = pack(v, max(lo, k - 8), k)
    for n in range(8):
        # The whole of the last eight letters, then fewer of them.
        part = word & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(8 * n))
        if contains(_NAMES, part):
            return 1
        if contains(_KEYS, part):
            if part != _TOKEN:
                return 2
            return 0 if _opens_nothing(v, lo, k - 5) else 3
        if n == 5:
            break
    return 0


@inner
def _opens_nothing(v: np.ndarray, lo: int, end: int) -> bool:
    """Whether a name of a token goes on to the left of `end` as those of pages and requests do."""
    if end > lo and (v[end - 1] == 95 or v[end - 1] == 45):
        end -= 1
    for size in range(4, 9):
        if end - size >= lo and contains(_NO_SECRETS, pack(v, end - size, end)):
            return True
    return False


@inner
def _is_secret(v: np.ndarray, start: int, end: int, is_token: bool, counts: np.ndarray) -> bool:
    """Whether a value is as random as secrets are, and no placeholder, reference, path or word."""
    size = end - start
    if size < (MIN_TOKEN_BYTES if is_token else MIN_VALUE_BYTES):
        return False
    c = v[start]
    # References, paths and numbers with a sign: $NAME, %NAME%, @file, /path, ./path, &name, -1.
    if c == 36 or c == 37 or c == 64 or c == 47 or c == 46 or c == 38 or c == 45:
        return False
    digits, capitals, small, joints, signs, changes = 0, 0, 0, 0, 0, 0
    for k in range(start, end):
        c = v[k]
        if k > start and (CLASS[c] ^ CLASS[v[k - 1]]) & (ALNUM | UPPER) != 0:
            changes += 1
        if is_any(c, DIGIT):
            digits += 1
        elif is_any(c, UPPER):
            capitals += 1
        elif is_any(c, ALPHA):
            small += 1
        elif c == 95 or c == 45 or c == 46:
            joints += 1
        elif c == 58 or c == 37 or (c == 64 and is_token):  # addresses, encoded, a.B@2bd79ce
            return False
        else:
            signs += 1
    if digits == 0 or capitals + small == 0:
        return False
    # words-with-joints-2, CONSTANT_2, object.Name2; and nameOf2Words, where letters of a kind are
    # next to each other.
    if joints > 0 and signs == 0 and 4 * digits < size:
        return False
    if size >= MIN_TOKEN_BYTES and 3 * changes < size:
        return False
    if size < MIN_TOKEN_BYTES and not (signs > 0 or (capitals > 0 and small > 0)):
        return False
    least = MIN_TOKEN_BITS if size >= MIN_TOKEN_BYTES else MIN_VALUE_BITS
    return entropy_bits(v, start, end, counts) >= least


@inner
def _is_one_sign(v: np.ndarray, start: int, end: int) -> bool:
    different = 0
    for k in range(start + 1, end):
        different += v[k] != v[start]
    return different == 0

"""Finds the word before a number that says what it is, by short walks back, for vetoes and for weak
checksums."""

from __future__ import annotations

import numpy as np

from tasks.definitions import pii_kinds as kinds
from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALPHA, contains, is_any, pack, packed

MAX_CONTEXT_BYTES = 48
MAX_CONTEXT_WORDS = 6

_NUMBERINGS = packed(
    "v ver version versions standard standards release released rel section sections sec sect"
    " chapter clause appendix oid build rev revision kernel firmware upgrade paragraph par article"
    " abschnitt kapitel paragraf artikel chapitre artículo sección seção"
)
_WIDE_NUMBERINGS = packed("第 章 节 節 条 款 项 項 本 核 版 號")
_WIDE_COUNTERS = packed("节 節 章 条 款 项 項 版 号 號")
_VERSION = packed("version")
_BRIDGES = packed("to from is was and number no nr")

_WORDS_OF = {
    kinds.US_SSN: "ssn ssns itin social",
    kinds.DE_IDNR: "idnr steuerid steuer steuernummer identifikationsnummer tin",
    kinds.IN_AADHAAR: "aadhaar aadhar adhaar uidai uid",
    kinds.BR_CPF: "cpf contribuinte",
    kinds.PL_PESEL: "pesel",
    kinds.NL_BSN: "bsn sofinummer burgerservicenummer",
    kinds.ES_DNI: "dni nif documento",
}
_CONTEXT_WORDS = np.concatenate([packed(words) for words in _WORDS_OF.values()])
_CONTEXT_KINDS = np.concatenate(
    [np.full(len(words.split()), kind, np.int64) for kind, words in _WORDS_OF.items()]
)


@inner
def announced(v: np.ndarray, lo: int, i: int, kind: int) -> bool:
    """Whether one of the last words before i names this kind of number."""
    limit = max(lo, i - MAX_CONTEXT_BYTES)
    words = 0
    while i > limit and words < MAX_CONTEXT_WORDS and v[i - 1] != 60 and v[i - 1] != 62:
        k = i
        while i > limit and is_any(v[i - 1], ALPHA):
            i -= 1
        if i == k:
            i -= 1
            continue
        words += 1
        word = pack(v, i, k)
        for n in range(len(_CONTEXT_WORDS)):
            if _CONTEXT_WORDS[n] == word and _CONTEXT_KINDS[n] == kind:
                return True
    return False


@inner
def is_numbering(v: np.ndarray, lo: int, i: int) -> bool:
    """Whether a word or sign before i counts versions, sections or objects."""
    j = _skip_back(v, i, lo, False)
    # 第, and characters that count or name versions: 章 节 節 条 款 本 核 版 號 号
    if j - 3 >= lo and v[j - 3] >= 0xE4 and contains(_WIDE_NUMBERINGS, pack(v, j - 3, j)):
        return True
    if j - 2 >= lo and v[j - 2] == 0xC2 and (v[j - 1] == 0xA7 or v[j - 1] == 0xA0):
        return v[j - 1] == 0xA7 or (j - 4 >= lo and v[j - 4] == 0xC2 and v[j - 3] == 0xA7)
    # <version>1.2.3.4 and <jackson.version>1.2.3.4; no name of a type is one of these words.
    if j > lo and v[j - 1] == 62:
        k = j - 1
        first = k
        while first > lo and k - first <= 9 and is_any(v[first - 1], ALPHA):
            first -= 1
        if first > lo and (v[first - 1] == 60 or v[first - 1] == 46 or v[first - 1] == 45):
            return contains(_NUMBERINGS, pack(v, first, k))
    # >=, ==, ~=, != and the like compare versions; < and > are one sign, so that tags and their
    # places act alike.
    if j - 2 >= lo and v[j - 1] == 61:
        b = v[j - 2]
        if b == 61 or b == 60 or b == 62 or b == 126 or b == 33:
            return True
    # Small words lead to the one that tells: "Standards-Version to 4.6.0.1".
    for _ in range(4):
        k = _skip_back(v, i, lo, True)
        if k > lo and v[k - 1] == 46:  # "Sec. 4.2.2.1"
            k -= 1
        i = k
        while i > lo and k - i <= 9 and is_any(v[i - 1], ALPHA):
            i -= 1
        word = pack(v, i, k)
        if i < k and contains(_NUMBERINGS, word):
            return True
        if k - i > 7 and contains(_VERSION, pack(v, k - 7, k)):  # FileVersion, MinimumVersion
            return True
        if i == k or not contains(_BRIDGES, word):
            return False
    return False


@inner
def is_counted(v: np.ndarray, hi: int, end: int) -> bool:
    """Whether a character for sections or versions stands behind: 4.11.19.1 节."""
    if end < hi and v[end] == 32:
        end += 1
    return end + 3 <= hi and v[end] >= 0xE4 and contains(_WIDE_COUNTERS, pack(v, end, end + 3))


@inner
def _skip_back(v: np.ndarray, i: int, lo: int, signs: bool) -> int:
    """Back over at most four blanks, quotes and parentheses, and over colons, equals signs and
    brackets where asked: version="[1.2.3.4]"."""
    limit = max(lo, i - 4)
    while i > limit:
        c = v[i - 1]
        if not (
            c == 32 or c == 40 or c == 34 or c == 39 or (signs and (c == 58 or c == 61 or c == 91))
        ):
            break
        i -= 1
    return i

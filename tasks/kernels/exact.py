"""Are two texts the same but for case and white space? One 128-bit key per text.

The text is case-folded (full Unicode folding, then NFC, so `STRASSE`, `Straße` and both spellings of `é` agree), runs of
white space become one blank, blanks at the ends go, and the rest is hashed with BLAKE2b. ASCII texts, most
bytes of most corpora, are folded by a compiled loop; others by Python, which gives the same for ASCII.
"""

from __future__ import annotations

import hashlib
import unicodedata

import numpy as np
from numba import njit

KEY_BYTES = 16


def exact_keys(buf: np.ndarray, begins: np.ndarray, rows: np.ndarray) -> list[bytes | None]:
    """The key of each document in `rows`, None for one that is blank: blank texts are not copies of each other."""
    scratch = np.empty(int(np.diff(begins).max(initial=0)) + 1, np.uint8)
    keys: list[bytes | None] = []
    for row in rows:
        begin, end = begins[row], begins[row + 1]
        size = _collapse_ascii(buf, begin, end, scratch)
        folded = scratch[:size].data if size >= 0 else fold_text(buf[begin:end].tobytes().decode("utf-8"))
        keys.append(hashlib.blake2b(folded, digest_size=KEY_BYTES).digest() if len(folded) else None)
    return keys


def fold_text(text: str) -> bytes:
    """The text that is compared, as UTF-8."""
    return " ".join(unicodedata.normalize("NFC", text.casefold()).split()).encode("utf-8")


@njit(cache=True, nogil=True)
def _collapse_ascii(buf, begin, end, out):  # type: ignore[no-untyped-def]
    """Write the folded text to `out` and return its size, or -1 for a text that is not ASCII."""
    size = 0
    blank = False
    for i in range(begin, end):
        c = buf[i]
        if c >= 0x80:
            return -1
        if c == 0x20 or 0x09 <= c <= 0x0D or 0x1C <= c <= 0x1F:  # what str.split splits at
            blank = size > 0
            continue
        if blank:
            out[size] = 0x20
            size += 1
            blank = False
        out[size] = c + 0x20 if 0x41 <= c <= 0x5A else c
        size += 1
    return size

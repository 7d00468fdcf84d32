"""Gives texts that are the same but for case and white space one 128-bit key.

The text is case-folded (full Unicode folding, then NFC, so `STRASSE` and `Straße` agree, and so do
both spellings of `é`), runs of white space become one blank, blanks at the ends go, and the rest is
hashed (`tasks.kernels.dedup.murmur3`, which bounds collisions). `fold_text` is the definition. A
compiled loop does the same for texts in which each character folds to one that no normalisation
touches: nearly all Latin, Greek, Cyrillic, Chinese and Japanese text. Others, such as texts with
combining marks, take the slow way.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np
from numba import njit, uint8

from tasks.kernels import inner
from tasks.kernels.dedup.murmur3 import hash_bytes, hash_span
from tasks.kernels.text.addresses import load_word, pointers, store_word
from tasks.kernels.text.chars import (
    ASCII_HIGH_BITS,
    NUM_CODE_POINTS,
    SPACE,
    ascii_between,
    char_classes,
    decode,
    fold_table,
)

KEY_BYTES = 16
_LAST_LOOKED_UP = 0x20000
_COMPATIBILITY_HAN = 0x2F800  # these decompose; the Han between fold to themselves
_CONTEXTUAL, _DOUBLE_S = 0xFFFFFFFF, 0xFFFFFFFE
_BLANKS = np.uint64(0x2020202020202020)


def exact_keys(buf: np.ndarray, begins: np.ndarray, rows: np.ndarray) -> list[bytes | None]:
    """The key of each document in `rows`, None for one that is blank: blank texts are not copies of
    each other."""
    ends = begins[1:]
    longest = int((ends[rows] - begins[rows]).max(initial=0))
    scratch = np.empty(_room_for(longest), np.uint8)
    hashed, hashes = np.zeros(len(rows), bool), np.empty((len(rows), 2), np.uint64)
    _key_rows(buf, begins, rows, exact_forms(), scratch, hashed, hashes)
    data = hashes.tobytes()
    keys: list[bytes | None] = [data[i : i + KEY_BYTES] for i in range(0, len(data), KEY_BYTES)]
    for i in np.flatnonzero(~hashed).tolist():
        folded = fold_text(buf[begins[rows[i]] : ends[rows[i]]].tobytes().decode("utf-8"))
        keys[i] = hash_bytes(np.frombuffer(folded, np.uint8), 0).tobytes() if folded else None
    return keys


def fold_text(text: str) -> bytes:
    """The text that is compared, as UTF-8."""
    # Word by word: white space joins nothing, and nothing moves over it. Most words of most texts
    # have nothing to normalise.
    normalize = unicodedata.normalize
    words = [word if word.isascii() else normalize("NFC", word) for word in text.casefold().split()]
    return " ".join(words).encode("utf-8")


@lru_cache(maxsize=1)
def exact_forms() -> np.ndarray:
    """What each code point folds to, uint32: a blank for white space, `_DOUBLE_S`, `_CONTEXTUAL`
    where others decide too."""
    forms = fold_table().copy()
    contextual = np.zeros(NUM_CODE_POINTS, bool)
    contextual[_COMPATIBILITY_HAN:] = True
    contextual[0x1100:0x1200] = True  # conjoining Jamo
    for code_point in range(_LAST_LOOKED_UP):
        char = chr(code_point)
        is_plain = len(char.casefold()) == 1 and unicodedata.is_normalized("NFC", char)
        if not is_plain or unicodedata.category(char)[0] == "M":
            contextual[code_point] = not char.isspace()
        pieces = unicodedata.decomposition(char).split()
        if len(pieces) == 2 and not pieces[0].startswith("<"):
            contextual[int(pieces[1], 16)] = True  # joins the character before it
    forms[contextual | contextual[forms]] = _CONTEXTUAL
    forms[[ord("ß"), ord("ẞ")]] = _DOUBLE_S  # else nearly all of German took the slow way
    forms[char_classes() == SPACE] = 0x20
    forms.setflags(write=False)
    return forms


@njit(cache=True, nogil=True)
def _room_for(num_bytes):  # type: ignore[no-untyped-def]
    """A byte that is not a character is folded as one of three; one more byte is written before it
    is given up."""
    return 3 * num_bytes + 4


@inner
def _fold_plain(buf, begin, end, forms, out):  # type: ignore[no-untyped-def]
    """Write the folded text to `out` and return its size, or -1 where a character is contextual.

    Every character is written; a blank after a blank is written over. Eight of ASCII go at once
    where no blank follows a blank.
    """
    size = np.int64(0)
    before = np.int64(0x20)  # blanks at the beginning go
    pos, next_word = begin, begin
    while pos < end:
        if pos >= next_word and pos + 8 <= end:
            word = load_word(buf, pos)
            if word & ASCII_HIGH_BITS:
                next_word = pos + 8
            else:
                blanks = ascii_between(word, 0x09, 0x0D) | ascii_between(word, 0x1C, 0x20)
                first = np.uint64(0x80 if before == 0x20 else 0)
                if not blanks & (blanks << np.uint64(8) | first):  # no two in a row
                    of_blanks = (blanks >> np.uint64(7)) * np.uint64(0xFF)
                    lowered = word | (ascii_between(word, 0x41, 0x5A) >> np.uint64(2))
                    store_word(out, size, (lowered & ~of_blanks) | (_BLANKS & of_blanks))
                    pos, size = pos + 8, size + 8
                    before = np.int64(0x20 if blanks >> np.uint64(63) else 0)
                    continue
                if blanks == ASCII_HIGH_BITS and before == 0x20:  # deep indentation
                    pos += 8
                    continue
                next_word = pos + 8
        c = np.int64(buf[pos])
        after = pos + 1
        if c >= 0x80:
            c, after = decode(buf, pos, end)
        pos = after
        c = np.int64(forms[c])
        if c < 0x80:
            out[size] = c
            size += (c != 0x20) | (before != 0x20)
            before = c
            continue
        if c == _CONTEXTUAL:
            return -1
        before = c
        if c == _DOUBLE_S:
            out[size] = out[size + 1] = 0x73
            size += 2
            continue
        if c < 0x800:
            out[size] = 0xC0 | (c >> 6)
            size += 1
        else:
            if c < 0x10000:
                out[size] = 0xE0 | (c >> 12)
            else:
                out[size] = 0xF0 | (c >> 18)
                size += 1
                out[size] = uint8(0x80 | ((c >> 12) & 0x3F))
            size += 1
            out[size] = 0x80 | ((c >> 6) & 0x3F)
            size += 1
        out[size] = 0x80 | (c & 0x3F)
        size += 1
    return size - 1 if size > 0 and before == 0x20 else size


@njit(cache=True, nogil=True)
def _key_rows(buf, begins, rows, forms, scratch, hashed, hashes):  # type: ignore[no-untyped-def]
    """Write the hash of each folded text, and whether it has one: contextual texts, which are not
    folded here, and blank ones have none."""
    folded = pointers(scratch)
    for i in range(rows.size):
        begin, end = np.int64(begins[rows[i]]), np.int64(begins[rows[i] + 1])
        size = _fold_plain(pointers(buf), begin, end, pointers(forms), folded)
        hashed[i] = size > 0
        if size > 0:
            hashes[i, 0], hashes[i, 1] = hash_span(folded, np.int64(0), size, 0)

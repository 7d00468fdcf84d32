"""Gives one 128-bit key to texts that are the same but for case and white space.

The text is case-folded (full Unicode folding, then NFC, so `STRASSE` and `Straße` agree, and so do
both spellings of `é`), runs of white space become one blank, blanks at the ends go, and the rest is
hashed with BLAKE2b. `fold_text` is the definition. A compiled loop does the same for texts in which
each character folds to one that no normalisation touches: nearly all Latin, Greek, Cyrillic,
Chinese and Japanese text. Others, such as texts with combining marks, take the slow way.
"""

from __future__ import annotations

import hashlib
import unicodedata
from functools import lru_cache

import numpy as np
from numba import njit, uint8

from tasks.kernels import inner
from tasks.kernels.dedup.blake2 import HASH_WORDS, LANES_ROOM, ROOM, hash_spans
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
_SCRATCH_BYTES = 1 << 20
_LAST_LOOKED_UP = 0x20000
_COMPATIBILITY_HAN = 0x2F800  # these decompose; the Han between fold to themselves
_CONTEXTUAL, _DOUBLE_S = 0xFFFFFFFF, 0xFFFFFFFE
_BLANKS = np.uint64(0x2020202020202020)


def exact_keys(buf: np.ndarray, begins: np.ndarray, rows: np.ndarray) -> list[bytes | None]:
    """The key of each document in `rows`, None for one that is blank: blank texts are not copies of
    each other."""
    ends = begins[1:]
    longest = int((ends[rows] - begins[rows]).max(initial=0))
    scratch = np.empty(max(_SCRATCH_BYTES, _room_for(longest)), np.uint8)
    places, hashes = (
        np.empty((len(rows), 2), np.int64),
        np.empty((len(rows), HASH_WORDS), np.uint64),
    )
    room, lanes = np.empty(ROOM, np.uint64), np.empty(LANES_ROOM, np.int64)
    _key_rows(buf, begins, rows, exact_forms(), scratch, places, room, lanes, hashes)
    data = hashes.tobytes()
    keys: list[bytes | None] = [data[i : i + KEY_BYTES] for i in range(0, len(data), KEY_BYTES)]
    for i in np.flatnonzero(places[:, 0] < 0).tolist():
        folded = fold_text(buf[begins[rows[i]] : ends[rows[i]]].tobytes().decode("utf-8"))
        keys[i] = hashlib.blake2b(folded, digest_size=KEY_BYTES).digest() if folded else None
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
        if (
            len(char.casefold()) != 1
            or unicodedata.category(char)[0] == "M"
            or not unicodedata.is_normalized("NFC", char)
        ):
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
    """A byte that is no character is folded as one of three; one more byte is written before it is
    given up."""
    return 3 * num_bytes + 4


@inner
def _fold_plain(buf, begin, end, forms, out, start):  # type: ignore[no-untyped-def]
    """Write the folded text to `out` from `start` on and return where it ends, or -1 where a
    character is contextual.

    Every character is written; a blank after a blank is written over. Eight of ASCII go at once
    where no blank follows a blank.
    """
    size = start
    before = np.int64(0x20)  # blanks at the beginning go
    pos, next_word = begin, begin
    while pos < end:
        if pos >= next_word and pos + 8 <= end:
            word = load_word(buf, pos)
            if word & ASCII_HIGH_BITS:
                next_word = pos + 8
            else:
                blanks = ascii_between(word, 0x09, 0x0D) | ascii_between(word, 0x1C, 0x20)
                doubled = (blanks & (blanks << np.uint64(8))) | (
                    blanks & np.uint64(0x80 if before == 0x20 else 0)
                )
                if not doubled:
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
    return size - 1 if size > start and before == 0x20 else size


@njit(cache=True, nogil=True)
def _key_rows(buf, begins, rows, forms, scratch, places, room, lanes, hashes):  # type: ignore[no-untyped-def]
    """Write the hashes of folded texts, as many at once as `scratch` has room for; places[i, 0] < 0
    where there is none.

    It is -1 for contextual texts, which are not folded here, and for blank ones.
    """
    spans, folded = pointers(places), pointers(scratch)
    done = 0
    while done < rows.size:
        first, at = done, np.int64(0)
        while done < rows.size:
            begin, end = np.int64(begins[rows[done]]), np.int64(begins[rows[done] + 1])
            if at + _room_for(end - begin) > scratch.size:
                break
            stop = _fold_plain(pointers(buf), begin, end, pointers(forms), folded, at)
            spans[2 * done], spans[2 * done + 1] = (at, stop) if stop > at else (-1, -1)
            at = max(at, stop)
            done += 1
        hash_spans(folded, spans, first, done, pointers(room), pointers(lanes), pointers(hashes))

"""Lower-cases characters as `str.lower` does, but that any letter before a capital sigma makes it a
final one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tasks.kernels import inlined, inner
from tasks.kernels.text.addresses import store_word
from tasks.kernels.text.chars import NUM_CODE_POINTS, char_classes, decode

_EIGHT = np.uint64(8)
SPACE_BIT, LETTER_BIT, MARK_BIT = 1, 2, 4
CAPITAL_SIGMA, _SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
DOTTED_I = 0x130
KIND_AT, CODE_POINT = 24, (1 << 24) - 1
"""Where in a number of `char_table` the kind lies, and which bits are the small letter."""


@lru_cache(maxsize=4)
def char_table(marks: tuple[int, ...]) -> np.ndarray:
    """`str.lower` of every code point (itself where that is two) and, above it, white space,
    letter, mark: uint32[0x110000]."""
    lowered = np.arange(NUM_CODE_POINTS, dtype=np.uint32)
    for code_point in range(0x1F000):  # no letter above has a case
        lower = chr(code_point).lower()
        if len(lower) == 1:
            lowered[code_point] = ord(lower)
    kinds = np.zeros(NUM_CODE_POINTS, np.uint32)
    known = np.flatnonzero(char_classes())
    # NUL separates words for fastText too.
    kinds[[0, *(c for c in known.tolist() if chr(c).isspace())]] = SPACE_BIT
    kinds[[c for c in known.tolist() if chr(c).isalpha()]] |= LETTER_BIT
    kinds[list(marks)] |= MARK_BIT
    table = lowered | kinds << KIND_AT
    table.setflags(write=False)
    return table


@inlined
def put(word, size, char):  # type: ignore[no-untyped-def]
    """Write a code point at word[size], in UTF-8, with what does not matter behind it; returns
    where it ends."""
    wide, tail = np.uint64(char), np.uint64(0x80)
    last = tail | (wide & np.uint64(0x3F))
    second = tail | ((wide >> np.uint64(6)) & np.uint64(0x3F))
    if char >= 0x800 and char < 0x10000:
        first = np.uint64(0xE0) | (wide >> np.uint64(12))
        store_word(word, size, first | (second << _EIGHT) | (last << np.uint64(16)))
        return size + 3
    if char < 0x80:
        word[size] = char
        return size + 1
    if char < 0x800:
        store_word(word, size, np.uint64(0xC0) | (wide >> np.uint64(6)) | (last << _EIGHT))
        return size + 2
    third = tail | ((wide >> np.uint64(12)) & np.uint64(0x3F))
    first = np.uint64(0xF0) | (wide >> np.uint64(18))
    store_word(
        word, size, first | (third << _EIGHT) | (second << np.uint64(16)) | (last << np.uint64(24))
    )
    return size + 4


@inner
def lower_sigma(text, pos, end, before, table):  # type: ignore[no-untyped-def]
    """The small letter of a capital sigma that ends at `pos`: after a letter and before none it is
    final."""
    final = before and (
        pos == end or not (table[decode(text, pos, end)[0]] >> KIND_AT) & LETTER_BIT
    )
    return _FINAL_SIGMA if final else _SIGMA

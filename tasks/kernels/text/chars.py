"""Decides which characters make words: decoding, character classes, simple folding, and the units
of a text.

A *unit* is what n-grams are made of, in every script:

* in scripts written without spaces (Han, Kana, Thai, Lao, Khmer, Myanmar): one letter with the
  marks that follow it;
* elsewhere a word: a maximal run of letters, marks, digits (Unicode N*) and connectors (Pc, such
  as `_`). An apostrophe (' or ’) belongs to a word when it stands inside one and a letter
  follows: `don't` is one word, `'tis'` is `tis`. Joiners (ZWJ, ZWNJ), soft hyphens, variation
  selectors and halfwidth voicing marks count as marks, the zero width space does not.

Punctuation, symbols and white space are never part of a unit. Classes come from `unicodedata`,
scripts from Unicode blocks, white space is `str.isspace`. Folding is simple, one code point to one:
`casefold()` where that is one character, else `lower()` where that is one, else the character
itself (so `ß` stays `ß`; no normalisation form is applied).

Kernels take the tables as arguments: a global array would be frozen into every compiled function.
Left out: dictionary segmentation, the full rules of UAX #29, hyphenated compounds (two words here).
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np
from numba import njit

from tasks.kernels import inlined
from tasks.kernels.text.addresses import pointers

NUM_CODE_POINTS = 0x110000
REPLACEMENT = 0xFFFD

# Character classes. Everything from MARK on is part of a unit.
OTHER, SPACE, PUNCTUATION, APOSTROPHE, MARK, CONNECTOR, DIGIT, LETTER, UNSEGMENTED = range(9)

_UNSEGMENTED_BLOCKS = (
    (0x0E00, 0x0E7F),  # Thai
    (0x0E80, 0x0EFF),  # Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # ideographic iteration and closing marks, zero
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana phonetic extensions
    (0x3400, 0x4DBF),  # Han extension A
    (0x4E00, 0x9FFF),  # Han
    (0xA9E0, 0xA9FF),  # Myanmar extended B
    (0xAA60, 0xAA7F),  # Myanmar extended A
    (0xF900, 0xFAFF),  # Han compatibility
    (0xFF66, 0xFF9D),  # halfwidth Katakana
    (0x1AFF0, 0x1B16F),  # Kana supplement and extensions
    # Han extensions B and later, in whole planes for characters that this Python does not know yet.
    (0x20000, 0x3FFFD),
)
_JOINERS = (0x00AD, 0x200C, 0x200D, 0x2060)
_VOICING_MARKS = (0xFF9E, 0xFF9F)
_VARIATION_SELECTORS = (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
_LAST_ASSIGNED = 0x20000  # below it categories are looked up; above lie Han, joiners, private use


@lru_cache(maxsize=1)
def char_classes() -> np.ndarray:
    """The class of every code point, uint8[0x110000]."""
    of_category = {"M": MARK, "N": DIGIT, "L": LETTER, "P": PUNCTUATION}
    table = np.zeros(NUM_CODE_POINTS, np.uint8)
    for code_point in range(_LAST_ASSIGNED):
        char = chr(code_point)
        category = unicodedata.category(char)
        if char.isspace():
            table[code_point] = SPACE
        else:
            table[code_point] = of_category.get(category[0], OTHER)
            if category == "Pc":
                table[code_point] = CONNECTOR
    table[list(map(ord, "'’"))] = APOSTROPHE
    table[[*_JOINERS, *_VOICING_MARKS, *_VARIATION_SELECTORS]] = MARK
    for first, last in _UNSEGMENTED_BLOCKS:
        if first >= _LAST_ASSIGNED:
            table[first : last + 1] = UNSEGMENTED
            continue
        for code_point in range(first, last + 1):
            is_letter = unicodedata.category(chr(code_point)) in ("Lo", "Lm", "Nl")
            if is_letter and table[code_point] != MARK:
                table[code_point] = UNSEGMENTED
    table.setflags(write=False)
    return table


@lru_cache(maxsize=1)
def fold_table() -> np.ndarray:
    """The folded form of every code point, uint32[0x110000]."""
    table = np.arange(NUM_CODE_POINTS, dtype=np.uint32)
    for code_point in range(_LAST_ASSIGNED):
        char = chr(code_point)
        folded, lowered = char.casefold(), char.lower()
        if len(folded) == 1:
            table[code_point] = ord(folded)
        elif len(lowered) == 1:
            table[code_point] = ord(lowered)
    table.setflags(write=False)
    return table


ASCII_HIGH_BITS = np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)


@inlined
def ascii_between(word, first, last):  # type: ignore[no-untyped-def]
    """The high bits of those bytes of eight of ASCII that are from `first` to `last`: sums of
    seven-bit bytes do not carry."""
    return (
        (word + np.uint64(0x80 - first) * _ONES)
        & ~(word + np.uint64(0x7F - last) * _ONES)
        & ASCII_HIGH_BITS
    )


@njit(cache=True, nogil=True, forceinline=True)
def decode(buf, pos, end):  # type: ignore[no-untyped-def]
    """(code point, next position) of valid UTF-8 at `pos` < `end`; a cut or impossible sequence is
    U+FFFD, one byte long."""
    lead = np.int64(buf[pos])
    if lead < 0x80:
        return lead, pos + 1
    if lead < 0xE0:
        if lead >= 0xC0 and pos + 1 < end:
            return ((lead & 0x1F) << 6) | (np.int64(buf[pos + 1]) & 0x3F), pos + 2
        return REPLACEMENT, pos + 1
    if lead < 0xF0:
        if pos + 2 < end:
            high = ((lead & 0x0F) << 12) | ((np.int64(buf[pos + 1]) & 0x3F) << 6)
            return high | (np.int64(buf[pos + 2]) & 0x3F), pos + 3
        return REPLACEMENT, pos + 1
    if pos + 3 < end:
        high = ((lead & 0x07) << 18) | ((np.int64(buf[pos + 1]) & 0x3F) << 12)
        code_point = high | ((np.int64(buf[pos + 2]) & 0x3F) << 6) | (np.int64(buf[pos + 3]) & 0x3F)
        if code_point < NUM_CODE_POINTS:
            return code_point, pos + 4
    return REPLACEMENT, pos + 1


HASH_SEED = np.uint64(0xCBF29CE484222325)
HASH_PRIME = np.uint64(0x100000001B3)


@njit(cache=True, nogil=True)
def mix64(value):  # type: ignore[no-untyped-def]
    """A bijection of uint64 in which every input bit reaches every output bit (the finaliser of
    SplitMix64)."""
    value = np.uint64(value)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(cache=True, nogil=True)
def next_unit(buf, pos, end, classes, folds):  # type: ignore[no-untyped-def]
    """The first unit at or after `pos`: (start, stop, hash) with byte offsets; start == end where
    there is none.

    The hash is 64-bit FNV-1a over folded code points, mixed. Calls with `pos = stop` walk the text,
    three times as fast where they give not arrays but `pointers`.
    """
    start, after, kind, code_point = end, end, OTHER, np.int64(0)
    while pos < end:
        if buf[pos] < 0x80:  # most bytes: not worth a call
            code_point, after = np.int64(buf[pos]), pos + 1
        else:
            code_point, after = decode(buf, pos, end)
        kind = classes[code_point]
        if kind >= MARK:
            start = pos
            break
        pos = after
    if start == end:
        return end, end, np.uint64(0)
    value = (HASH_SEED ^ np.uint64(folds[code_point])) * HASH_PRIME
    unsegmented = kind == UNSEGMENTED
    stop = after
    while stop < end:
        if buf[stop] < 0x80:
            code_point, after = np.int64(buf[stop]), stop + 1
        else:
            code_point, after = decode(buf, stop, end)
        kind = classes[code_point]
        if unsegmented:
            if kind != MARK:
                break
        elif kind == APOSTROPHE:
            if after == end:
                break
            following, _ = decode(buf, after, end)
            if classes[following] != LETTER:
                break
        elif kind < MARK or kind == UNSEGMENTED:
            break
        value = (value ^ np.uint64(folds[code_point])) * HASH_PRIME
        stop = after
    return start, stop, mix64(value)


@njit(cache=True, nogil=True)
def document_units(buf, begin, end, classes, folds, starts, stops, hashes):  # type: ignore[no-untyped-def]
    """Write the units of the text in buf[begin:end] into int64, int64 and uint64 arrays; returns
    how many.

    The arrays need room for one unit per byte. Offsets are positions in `buf`.
    """
    count = 0
    pos = begin
    text, kinds, folded = pointers((buf, classes, folds))
    while True:
        start, stop, value = next_unit(text, pos, end, kinds, folded)
        if start == end:
            return count
        starts[count], stops[count], hashes[count] = start, stop, value
        count += 1
        pos = stop

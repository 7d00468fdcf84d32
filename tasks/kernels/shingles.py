"""What is a text made of, if order counts only locally? The hashes of its n-grams of folded units.

A unit is a word, or one character in scripts written without spaces (`tasks.kernels.chars`). In shingles *lone signs* are units
too: what stands between blanks and has no word in it (`//`, `-`, `|`, `:-)`), so that lines behind comment signs are not
the same as lines without. Signs that touch a word count for nothing. A shingle is `shingle_units` units in a row; its hash is a
polynomial in the 64-bit unit hashes modulo 2^64, mixed, so order counts. A text of fewer units has no shingles: two such texts
are alike only if they are equal, which the exact key decides.

Cost: one walk over the UTF-8 bytes and eight bytes of scratch per byte of the longest text.
"""

from __future__ import annotations

import numpy as np
from numba import int64, njit, uint64

from tasks.kernels.chars import _HASH_PRIME as HASH_PRIME
from tasks.kernels.chars import _HASH_SEED as HASH_SEED
from tasks.kernels.chars import APOSTROPHE, LETTER, MARK, SPACE, UNSEGMENTED, decode, mix64
from tasks.kernels.minhash import update_signature

SHINGLE_BASE = np.uint64(0x9E3779B97F4A7C15)

Text = tuple[np.ndarray, np.ndarray]
"""UTF-8 bytes and the offsets where documents begin, one more than documents."""

Tables = tuple[np.ndarray, np.ndarray]
"""Character classes and folded forms by code point."""


@njit(cache=True, nogil=True)
def unit_hashes(buf, begin, end, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the hashes of the units of the text in buf[begin:end], as `chars.document_units` does; returns how many.

    `out` has room for a unit per byte and one more.
    """
    return _walk(buf, begin, end, False, classes, folds, out)


@njit(cache=True, nogil=True)
def _walk(buf, begin, end, with_signs, classes, folds, out):  # type: ignore[no-untyped-def]
    """`unit_hashes`, with lone signs among the units or without.

    ASCII goes without branches on what a character is: each one writes the unit that would end before it and moves on if one
    did. To guess the ends of words wrong costs more than that. Only the end of lone signs is worth a branch.
    Hashes are mixed at the end, many at once.
    """
    count = 0
    pos = begin
    # inside: a unit is being read. unsegmented: it is one letter, to which only marks can be added.
    value, inside, unsegmented = HASH_SEED, uint64(0), False
    # wordless: no unit since the last blank. blank: the last character was one. Lone signs: wordless and not blank.
    signs = uint64(with_signs)
    wordless, blank = signs, uint64(1)
    while pos < end:
        c = int64(buf[pos])
        kind = classes[c]
        ends_signs = uint64(kind == SPACE) & wordless & (blank ^ uint64(1))
        if c < 0x80 and kind != APOSTROPHE and not unsegmented and not ends_signs:
            word = uint64(kind >= MARK)
            out[count] = value
            count += int64(inside & (word ^ uint64(1)))
            longer = uint64((value ^ uint64(folds[c])) * HASH_PRIME)
            value = uint64(HASH_SEED ^ ((longer ^ HASH_SEED) & uint64(uint64(0) - word)))
            inside = word
            blank = uint64(kind == SPACE)
            wordless = (wordless & (word ^ uint64(1))) | (blank & signs)
            pos += 1
            continue
        start = pos
        if (c & 0xF0) == 0xE0 and pos + 2 < end:
            c = ((c & 0x0F) << 12) | ((int64(buf[pos + 1]) & 0x3F) << 6) | (int64(buf[pos + 2]) & 0x3F)
            pos += 3
        else:
            c, pos = decode(buf, pos, end)
        kind = classes[c]
        if kind == SPACE and wordless and not blank:
            out[count] = _lone_signs(buf, begin, start, classes, folds)
            count += 1
        blank = uint64(kind == SPACE)
        wordless = (wordless & uint64(kind < MARK)) | (blank & signs)
        if kind == UNSEGMENTED:
            out[count] = value
            count += int64(inside)
            value = (HASH_SEED ^ uint64(folds[c])) * HASH_PRIME
            inside, unsegmented = uint64(1), True
            continue
        if kind == APOSTROPHE and inside and not unsegmented and pos < end:
            following, _ = decode(buf, pos, end)
            if classes[following] == LETTER:
                value = (value ^ uint64(folds[c])) * HASH_PRIME
                continue
        if kind < MARK or (unsegmented and kind != MARK):
            out[count] = value
            count += int64(inside)
            value, inside, unsegmented = HASH_SEED, uint64(0), False
        if kind >= MARK:
            value = (value ^ uint64(folds[c])) * HASH_PRIME
            inside = uint64(1)
    out[count] = value
    count += int64(inside)
    if wordless and not blank:
        out[count] = _lone_signs(buf, begin, end, classes, folds)
        count += 1
    for i in range(count):
        out[i] = mix64(out[i])
    return count


@njit(cache=True, nogil=True)
def _lone_signs(buf, begin, end, classes, folds):  # type: ignore[no-untyped-def]
    """The hash, before mixing, of what stands between the last blank before `end` and `end`."""
    pos = end
    while pos > begin:
        start = pos - 1
        while start > begin and buf[start] & 0xC0 == 0x80:
            start -= 1
        c, _ = decode(buf, start, end)
        if classes[c] == SPACE:
            break
        pos = start
    value = HASH_SEED
    while pos < end:
        c, pos = decode(buf, pos, end)
        value = (value ^ uint64(folds[c])) * HASH_PRIME
    return value


@njit(cache=True, nogil=True)
def document_shingles(buf, begin, end, shingle_units, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the shingle hashes of the text in buf[begin:end] into `out`, in order, repeats included; returns how many."""
    num_units = _walk(buf, begin, end, True, classes, folds, out)
    if num_units < shingle_units:
        return 0
    highest = uint64(1)
    h = uint64(0)
    for i in range(shingle_units - 1):
        highest = uint64(highest * SHINGLE_BASE)
        h = uint64(h * SHINGLE_BASE + out[i])
    for i in range(num_units - shingle_units + 1):  # in place: unit i leaves the window when shingle i is written
        h = uint64(h * SHINGLE_BASE + out[i + shingle_units - 1])
        leaving = uint64(out[i] * highest)
        out[i] = mix64(h)
        h = uint64(h - leaving)
    return num_units - shingle_units + 1


@njit(cache=True, nogil=True)
def sign_documents(buf, begins, rows, shingle_units, tables, permutations, scratch, signatures):  # type: ignore[no-untyped-def]
    """Lower row i of `signatures` to the min-hashes of document rows[i]; returns the number of shingles of each."""
    classes, folds = tables
    multipliers, increments = permutations
    num_shingles = np.zeros(rows.size, np.int64)
    for i in range(rows.size):
        row = rows[i]
        count = document_shingles(buf, begins[row], begins[row + 1], shingle_units, classes, folds, scratch)
        update_signature(scratch[:count], multipliers, increments, signatures[i])
        num_shingles[i] = count
    return num_shingles


def shingle_sets(
    text: Text, rows: np.ndarray, shingle_units: int, tables: Tables, scratch: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sorted, distinct high halves of the shingle hashes of documents `rows`, one set after another, and their sizes.

    The high half is what signatures are made of; twice the memory would tell no more texts apart that matter.
    """
    buf, begins = text
    hashes, ends = _high_halves(buf, begins, rows, shingle_units, tables, scratch)
    begin = 0
    for end in ends.tolist():
        hashes[begin:end].sort()  # numpy sorts with vector instructions, compiled loops do not
        begin = end
    return _distinct(hashes, ends)


@njit(cache=True, nogil=True)
def _high_halves(buf, begins, rows, shingle_units, tables, scratch):  # type: ignore[no-untyped-def]
    classes, folds = tables
    hashes, ends = np.empty(1024, np.uint32), np.empty(rows.size, np.int64)
    at = 0
    for i in range(rows.size):
        row = rows[i]
        count = document_shingles(buf, begins[row], begins[row + 1], shingle_units, classes, folds, scratch)
        if at + count > hashes.size:
            larger = np.empty(2 * (at + count), np.uint32)
            larger[:at] = hashes[:at]
            hashes = larger
        for k in range(count):
            hashes[at + k] = scratch[k] >> uint64(32)
        at += count
        ends[i] = at
    return hashes[:at], ends


@njit(cache=True, nogil=True)
def _distinct(hashes, ends):  # type: ignore[no-untyped-def]
    """Take out doubles within each sorted stretch; in place, then copied to size."""
    sizes = np.empty(ends.size, np.int64)
    at, begin = 0, 0
    for i in range(ends.size):
        first = at
        for k in range(begin, ends[i]):
            if at == first or hashes[k] != hashes[at - 1]:
                hashes[at] = hashes[k]
                at += 1
        begin = ends[i]
        sizes[i] = at - first
    return hashes[:at].copy(), sizes


def make_scratch(begins: np.ndarray) -> np.ndarray:
    """Room for the units of the longest text: a unit has at least one byte."""
    return np.empty(int(np.diff(begins).max(initial=0)) + 1, np.uint64)

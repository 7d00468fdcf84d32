"""What is a text made of, if order counts only locally? The hashes of its n-grams of folded units.

A unit is a word, or one character in scripts written without spaces (`tasks.kernels.chars`). A shingle is
`shingle_units` units in a row; its hash is a polynomial in the 64-bit unit hashes modulo 2^64, mixed, so order counts. A text of
fewer units has no shingles: two such texts are alike only if they are equal, which the exact key decides.

Cost: one walk over the UTF-8 bytes and eight bytes of scratch per byte of the longest text.
"""

from __future__ import annotations

import numpy as np
from numba import int64, njit, uint64

from tasks.kernels.chars import _HASH_PRIME as HASH_PRIME
from tasks.kernels.chars import _HASH_SEED as HASH_SEED
from tasks.kernels.chars import APOSTROPHE, LETTER, MARK, UNSEGMENTED, decode, mix64
from tasks.kernels.minhash import update_signature

Text = tuple[np.ndarray, np.ndarray]
"""UTF-8 bytes and the offsets where documents begin, one more than documents."""

Tables = tuple[np.ndarray, np.ndarray]
"""Character classes and folded forms by code point."""


@njit(cache=True, nogil=True)
def unit_hashes(buf, begin, end, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the hashes of the units of the text in buf[begin:end], as `chars.document_units` does; returns how many.

    The same walk without offsets and with ASCII decoded in place takes a third of the time.
    """
    count = 0
    pos = begin
    while pos < end:
        c, after = int64(buf[pos]), pos + 1
        if c >= 0x80:
            c, after = decode(buf, pos, end)
        pos = after
        kind = classes[c]
        if kind < MARK:
            continue
        value = (HASH_SEED ^ uint64(folds[c])) * HASH_PRIME
        if kind == UNSEGMENTED:
            while pos < end and buf[pos] >= 0x80:  # no ASCII character is a mark
                c, after = decode(buf, pos, end)
                if classes[c] != MARK:
                    break
                value = (value ^ uint64(folds[c])) * HASH_PRIME
                pos = after
        else:
            while pos < end:
                c, after = int64(buf[pos]), pos + 1
                if c >= 0x80:
                    c, after = decode(buf, pos, end)
                kind = classes[c]
                if kind < MARK:
                    if kind != APOSTROPHE or after >= end:
                        break
                    following, _ = decode(buf, after, end)
                    if classes[following] != LETTER:
                        break
                elif kind == UNSEGMENTED:
                    break
                value = (value ^ uint64(folds[c])) * HASH_PRIME
                pos = after
        out[count] = mix64(value)
        count += 1
    return count


@njit(cache=True, nogil=True)
def document_shingles(buf, begin, end, shingle_units, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the shingle hashes of the text in buf[begin:end] into `out`, in order, repeats included; returns how many."""
    num_units = unit_hashes(buf, begin, end, classes, folds, out)
    count = max(num_units - shingle_units + 1, 0)
    for i in range(count):  # in place: unit i is read for the last time by shingle i
        h = uint64(0)
        for j in range(i, i + shingle_units):
            h = uint64(h * uint64(0x9E3779B97F4A7C15) + out[j])
        out[i] = mix64(h)
    return count


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


def shingle_set(text: Text, row: int, shingle_units: int, tables: Tables, scratch: np.ndarray) -> np.ndarray:
    """The sorted, distinct shingle hashes of one document."""
    buf, begins = text
    count = document_shingles(buf, begins[row], begins[row + 1], shingle_units, *tables, scratch)
    return np.unique(scratch[:count])


def make_scratch(begins: np.ndarray) -> np.ndarray:
    """Room for the units of the longest text: a unit has at least one byte."""
    return np.empty(int(np.diff(begins).max(initial=0)) + 1, np.uint64)

"""Hashes the n-grams of folded units of a text.

A unit is a word, or one character in scripts written without spaces (`tasks.kernels.text.chars`).
In shingles *comment signs* (`tasks.kernels.dedup.comment_signs`) are units too, so that lines
behind comment signs are not the same as lines without. Other signs count for nothing: dashes,
bullets, and what touches a word. A shingle is `shingle_units` units in a row; its hash is a
polynomial in the 64-bit unit hashes modulo 2^64, mixed, so order counts. A text of fewer units has
no shingles: two such texts are alike only if they are equal, which the exact key decides.

Cost: one walk over the UTF-8 bytes and eight bytes of scratch per byte of the longest text.
"""

from __future__ import annotations

import numpy as np
from numba import int64, njit, uint64

from tasks.kernels.dedup.comment_signs import NO_COMMENT, lone_signs
from tasks.kernels.dedup.minhash import update_signature
from tasks.kernels.text.chars import (
    APOSTROPHE,
    HASH_PRIME,
    HASH_SEED,
    LETTER,
    MARK,
    SPACE,
    UNSEGMENTED,
    decode,
    mix64,
)

SHINGLE_BASE = np.uint64(0x9E3779B97F4A7C15)

BLANK, WORD, SIGNS, HALT = np.uint64(0), np.uint64(6), np.uint64(12), np.uint64(32)
"""What stands since the last blank: nothing, a word at least, or signs alone. The number is where a
step has its six bits."""
STATE_BITS = np.uint64(63)

STATES, FOLDS, FACTORS, OPENINGS = np.uint64(0), np.uint64(256), np.uint64(384), np.uint64(512)
"""Where the parts of the table of steps begin."""

Text = tuple[np.ndarray, np.ndarray]
"""UTF-8 bytes and the offsets where documents begin, one more than documents."""

Tables = tuple[np.ndarray, np.ndarray]
"""Character classes and folded forms by code point."""


@njit(cache=True, nogil=True)
def unit_hashes(buf, begin, end, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the hashes of the units of the text in buf[begin:end], as `chars.document_units` does;
    returns how many.

    `out` has room for a unit per byte and one more.
    """
    return _walk(buf, begin, end, False, classes, folds, out)


@njit(cache=True, nogil=True)
def _walk(buf, begin, end, with_signs, classes, folds, out):  # type: ignore[no-untyped-def]
    """`unit_hashes`, with lone signs among the units or without.

    ASCII goes by the table of `_ascii_steps`, without branches on what a character is: each one
    writes the unit that would end before it and moves on if one did. To guess the ends of words
    wrong costs more than that; only apostrophes and the ends of lone signs are worth a branch. All
    that a character waits for from the last is the hash: an exclusive or and a product, which is
    with 0 outside words. Hashes are mixed at the end, many at once.
    """
    steps = _ascii_steps(classes, folds, with_signs)
    # Unsigned, or each access asks whether its index counts from the end.
    count, pos, stop = uint64(0), uint64(begin), uint64(end)
    # value: the hash of the unit being read, 0 where none is. opening: the seed where none is, else
    # 0; the seed is odd. unsegmented: the unit is one letter, to which only marks can be added.
    # state: what stands since the last blank.
    value, opening, unsegmented, state = uint64(0), HASH_SEED, False, BLANK
    comment = NO_COMMENT
    while pos < stop:
        c = int64(buf[pos])
        if c < 0x80:
            if unsegmented:
                out[count] = value
                count += uint64(1)
                value, opening, unsegmented = uint64(0), HASH_SEED, False
            while pos < stop:
                byte = uint64(buf[pos])
                next_state = steps[STATES + byte] >> (state & STATE_BITS)
                if next_state & HALT:
                    break
                state = next_state
                out[count] = value
                next_opening = steps[OPENINGS + byte]
                count += ~opening & next_opening & uint64(1)
                value = (value ^ (opening ^ steps[FOLDS + byte])) * steps[FACTORS + byte]
                opening = next_opening
                pos += uint64(1)
            state &= STATE_BITS
            if pos == stop:
                break
            c = int64(buf[pos])
        start = pos
        pos += uint64(1)
        # Two and three bytes here: a call counts references to its arrays, which takes as long as
        # twenty letters.
        if (c & 0xE0) == 0xC0 and pos < stop:
            c = ((c & 0x1F) << 6) | (int64(buf[pos]) & 0x3F)
            pos += uint64(1)
        elif (c & 0xF0) == 0xE0 and pos + uint64(1) < stop:
            c = ((c & 0x0F) << 12) | ((int64(buf[pos]) & 0x3F) << 6)
            c |= int64(buf[pos + uint64(1)]) & 0x3F
            pos += uint64(2)
        elif c >= 0x80:
            c, after = decode(buf, int64(start), end)
            pos = uint64(after)
        kind = classes[c]
        inside = ~opening & uint64(1)
        if kind == UNSEGMENTED:
            out[count] = value
            count += inside
            value = (HASH_SEED ^ uint64(folds[c])) * HASH_PRIME
            opening, unsegmented, state = uint64(0), True, WORD
            continue
        if kind == APOSTROPHE and inside and not unsegmented and pos < stop:
            following = int64(buf[pos])
            if following >= 0x80:
                following, _ = decode(buf, int64(pos), end)
            if classes[following] == LETTER:
                value = (value ^ uint64(folds[c])) * HASH_PRIME
                continue
        if kind >= MARK:
            state = WORD
        elif kind != SPACE:
            state = SIGNS if state == BLANK else state
        else:
            if with_signs and state == SIGNS:
                value, counts, comment = lone_signs(
                    buf, begin, int64(start), end, classes, folds, comment
                )
                out[count] = value
                count += counts
                value = uint64(0)
            state = BLANK
        if kind < MARK or (unsegmented and kind != MARK):
            out[count] = value
            count += inside
            value, opening, unsegmented = uint64(0), HASH_SEED, False
        if kind >= MARK:
            value = (value ^ opening ^ uint64(folds[c])) * HASH_PRIME
            opening = uint64(0)
    out[count] = value
    count += ~opening & uint64(1)
    if with_signs and state == SIGNS:
        value, counts, _ = lone_signs(buf, begin, end, end, classes, folds, comment)
        out[count] = value
        count += counts
    for i in range(count):
        out[i] = mix64(out[i])
    return int64(count)


@njit(cache=True, nogil=True)
def _ascii_steps(classes, folds, with_signs):  # type: ignore[no-untyped-def]
    """What `_walk` does at each byte, uint64[640]: at STATES for 256 bytes, at FOLDS, FACTORS and
    OPENINGS for the ASCII ones.

    The state after `state` stands `state` bits up, so that to follow is one shift. HALT is what
    takes more: what is not ASCII, apostrophes, and the blank that ends lone signs if they are
    wanted.
    """
    steps = np.empty(640, np.uint64)
    halt = HALT << BLANK | HALT << WORD | HALT << SIGNS
    for c in range(128):
        kind = classes[c]
        states = SIGNS << BLANK | WORD << WORD | SIGNS << SIGNS
        if kind == SPACE:
            states = BLANK << BLANK | BLANK << WORD | (HALT if with_signs else BLANK) << SIGNS
        if kind >= MARK:
            states = WORD << BLANK | WORD << WORD | WORD << SIGNS
        if kind == APOSTROPHE:
            states = halt
        steps[STATES + uint64(c)] = states
        steps[STATES + uint64(c + 128)] = halt
        steps[FOLDS + uint64(c)] = folds[c]
        steps[FACTORS + uint64(c)] = HASH_PRIME if kind >= MARK else uint64(0)
        steps[OPENINGS + uint64(c)] = uint64(0) if kind >= MARK else HASH_SEED
    return steps


@njit(cache=True, nogil=True)
def document_shingles(buf, begin, end, shingle_units, classes, folds, out):  # type: ignore[no-untyped-def]
    """Write the shingle hashes of the text in buf[begin:end] into `out`, in order, repeats
    included; returns how many."""
    num_units = _walk(buf, begin, end, True, classes, folds, out)
    if num_units < shingle_units:
        return 0
    highest = uint64(1)
    h = uint64(0)
    for i in range(shingle_units - 1):
        highest = uint64(highest * SHINGLE_BASE)
        h = uint64(h * SHINGLE_BASE + out[i])
    # In place: unit i leaves the window when shingle i is written.
    for i in range(num_units - shingle_units + 1):
        h = uint64(h * SHINGLE_BASE + out[i + shingle_units - 1])
        leaving = uint64(out[i] * highest)
        out[i] = mix64(h)
        h = uint64(h - leaving)
    return num_units - shingle_units + 1


@njit(cache=True, nogil=True)
def sign_documents(buf, begins, rows, shingle_units, tables, permutations, scratch, signatures):  # type: ignore[no-untyped-def]
    """Lower row i of `signatures` to the min-hashes of document rows[i]; returns the number of
    shingles of each."""
    classes, folds = tables
    multipliers, increments = permutations
    num_shingles = np.zeros(rows.size, np.int64)
    for i in range(rows.size):
        row = rows[i]
        count = document_shingles(
            buf, begins[row], begins[row + 1], shingle_units, classes, folds, scratch
        )
        update_signature(scratch[:count], multipliers, increments, signatures[i])
        num_shingles[i] = count
    return num_shingles


def shingle_sets(
    text: Text, rows: np.ndarray, shingle_units: int, tables: Tables, scratch: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sorted, distinct high halves of the shingle hashes of documents `rows`, one set after
    another, and their sizes.

    The high half is what signatures are made of; twice the memory would tell no more texts apart
    that matter.
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
        count = document_shingles(
            buf, begins[row], begins[row + 1], shingle_units, classes, folds, scratch
        )
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

"""Texts with known duplicates among them, written faster than they are read.

Document d is one of ten kinds, by its last digit: two copies of the one text that all such
documents share; the five of a cluster, an original and four that differ from it in one word each,
and so from each other in two; three that share nothing. Of the last kind every fifth differs in its
last word only from one page, so that a band has a bucket of a fiftieth of all documents. Words are
drawn from 50,000 by hashes of (document, place): any document can be written again from its number.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.kernels.text.chars import mix64

NUM_WORDS = 100
"""Words in a document; 96 shingles of five, so one changed word in the middle makes a similarity of
91 / 101."""

COPIES, CLUSTER, ALONE, PAGE = range(4)


def make_vocabulary(size: int = 50_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Letters of words of 3 to 10, one after another, and where each begins."""
    random = np.random.default_rng(seed)
    sizes = random.integers(3, 11, size)
    return random.integers(ord("a"), ord("z") + 1, int(sizes.sum())).astype(
        np.uint8
    ), np.concatenate([[0], np.cumsum(sizes)])


@njit(cache=True, nogil=True)
def kind_of(document):  # type: ignore[no-untyped-def]
    """(kind, number of the text it is made of, number of its own words, how many of them it
    has)."""
    digit, ten = document % 10, document // 10
    if digit < 2:
        return COPIES, 1, 0, 0
    if digit < 7:
        return CLUSTER, 3 + 2 * ten, document, int(digit > 2)
    if digit == 9 and ten % 5 == 0:
        return PAGE, 2, document, 1
    return ALONE, 4 + 20 * ten + 2 * digit, 0, 0


@njit(cache=True, nogil=True)
def write_texts(documents, letters, word_begins, buf, begins):  # type: ignore[no-untyped-def]
    """Write the texts of `documents` to buf and their offsets to begins (one more)."""
    size = np.uint64(word_begins.size - 1)
    at = 0
    for i in range(documents.size):
        kind, text, own, num_own = kind_of(documents[i])
        changed = -1
        if num_own:
            # Clear of the ends, so that a changed word is in five shingles; a page changes at its
            # end.
            changed = (
                NUM_WORDS - 1
                if kind == PAGE
                else 10 + int(mix64(np.uint64(own)) % np.uint64(NUM_WORDS - 20))
            )
        begins[i] = at
        for place in range(NUM_WORDS):
            number = np.uint64(own if place == changed else text)
            word = int(
                mix64(mix64(number) + np.uint64(place) * np.uint64(0x9E3779B97F4A7C15)) % size
            )
            for k in range(word_begins[word], word_begins[word + 1]):
                buf[at] = letters[k]
                at += 1
            buf[at] = 0x20
            at += 1
    begins[documents.size] = at

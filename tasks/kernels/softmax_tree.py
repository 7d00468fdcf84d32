"""Which leaf of a fastText model's softmax tree fits the beginning of each text best?

The arithmetic of fastText 0.9 (Joulin et al. 2016; src/dictionary.cc, loss.cc) for models with hierarchical softmax, in one
pass over Arrow buffers: words parted by white space, their character n-grams hashed, rows averaged, the Huffman tree walked
from the root with the branches that cannot win left out. Words are lower-cased on the way as `str.lower` does, but that any
letter before a capital sigma makes it a final one.

Cost: one hash step per byte and n-gram length, one row of `dim` floats per n-gram that the model knows, some tens of tree nodes.
Left out: word n-grams, and the rounding of the compiler that built fastText: scores differ in the sixth digit.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.chars import NUM_CODE_POINTS, char_classes, decode
from tasks.kernels.fasttext_rows import FNV_SEED, find_rows, find_word, fnv, is_label

SPACE_BIT, LETTER_BIT, MARK_BIT = 1, 2, 4
SEEN_LETTER, SEEN_END, CORRECTED = 1, 2, 4
"""Bits of `facts`: a letter was read, the text held fastText's end of line, the best label was not of the text's script."""

_inline = njit(nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
_CAPITAL_SIGMA, _SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
_DOTTED_I = 0x130
_NO_LEAF = -1
_KEPT_WORDS, _KEPT_BYTES = 1 << 12, 40
"""Words whose sums are kept (a power of two) and how long they may be; longer ones are read each time, at the place -1."""
_LEAST_SCORE = np.float32(math.log(1e-5))


@lru_cache(maxsize=1)
def lower_table() -> np.ndarray:
    """`str.lower` of every code point, uint32[0x110000]; the one that becomes two characters is itself."""
    table = np.arange(NUM_CODE_POINTS, dtype=np.uint32)
    for code_point in range(0x1F000):  # no letter above has a case
        lowered = chr(code_point).lower()
        if len(lowered) == 1:
            table[code_point] = ord(lowered)
    table.setflags(write=False)
    return table


@lru_cache(maxsize=4)
def kind_table(marks: tuple[int, ...]) -> np.ndarray:
    """Bits of every code point, uint8[0x110000]: white space, letter, one of `marks`."""
    table = np.zeros(NUM_CODE_POINTS, np.uint8)
    known = np.flatnonzero(char_classes())
    table[[0, *(c for c in known.tolist() if chr(c).isspace())]] = SPACE_BIT  # NUL parts words for fastText too
    table[[c for c in known.tolist() if chr(c).isalpha()]] |= LETTER_BIT
    table[list(marks)] |= MARK_BIT
    table.setflags(write=False)
    return table


@_inline
def _put(out, size, char):  # type: ignore[no-untyped-def]
    if char < 0x80:
        out[size] = char
        return size + 1
    if char < 0x800:
        out[size] = 0xC0 | (char >> 6)
        out[size + 1] = 0x80 | (char & 0x3F)
        return size + 2
    if char < 0x10000:
        out[size] = 0xE0 | (char >> 12)
        out[size + 1] = 0x80 | ((char >> 6) & 0x3F)
        out[size + 2] = 0x80 | (char & 0x3F)
        return size + 3
    out[size] = 0xF0 | (char >> 18)
    out[size + 1] = 0x80 | ((char >> 12) & 0x3F)
    out[size + 2] = 0x80 | ((char >> 6) & 0x3F)
    out[size + 3] = 0x80 | (char & 0x3F)
    return size + 4


@inner
def _add_rows(totals, at, rows, which, count):  # type: ignore[no-untyped-def]
    """totals[at] becomes the sum of these rows."""
    for k in range(totals.shape[1]):
        totals[at, k] = 0
    for i in range(count):
        row = which[i]
        for k in range(totals.shape[1]):
            totals[at, k] += rows[row, k]


@inner
def _best_leaf(hidden, nodes, children, written, script, stack, scores):  # type: ignore[no-untyped-def]
    """(leaf, log score) of the best of those in written[script]; node numbers as in fastText: leaves first, the root last."""
    num_leaves = written.shape[1]
    best, best_score = np.int64(_NO_LEAF), _LEAST_SCORE
    stack[0], scores[0], depth = num_leaves + len(children) - 1, np.float32(0), 1
    while depth:
        depth -= 1
        node, score = np.int64(stack[depth]), scores[depth]
        if score < best_score or (score == best_score and best != _NO_LEAF):
            continue
        if node < num_leaves:
            if written[script, node]:
                best, best_score = node, score
            continue
        dot = np.float32(0)
        for k in range(hidden.size):
            dot += nodes[node - num_leaves, k] * hidden[k]
        right = np.float32(1.0 / np.float64(np.float32(1) + np.float32(math.exp(-dot))))
        for side in range(2):  # the left is walked first: it lies on top
            part = right if side == 0 else np.float32(1.0 - np.float64(right))
            stack[depth] = children[node - num_leaves, 1 - side]
            scores[depth] = score + np.float32(math.log(np.float64(part) + 1e-5))
            depth += 1
    return best, best_score


@_inline
def _lowered(buf, char, pos, end, before, kinds, lowers):  # type: ignore[no-untyped-def]
    """The small letter of `char`, which ends at `pos`; a sigma after a letter and before none is final."""
    if char == _CAPITAL_SIGMA:
        if before and (pos == end or not kinds[decode(buf, pos, end)[0]] & LETTER_BIT):
            return np.int64(_FINAL_SIGMA)
        return np.int64(_SIGMA)
    return np.int64(lowers[char])


@inner
def _read_word(word, size, value, lengths, there, places, num_words, slots, word_bytes, word_ends, which):  # type: ignore[no-untyped-def]
    """Write the rows of word[:size] and of its n-grams into `which`; returns how many."""
    number = find_word(word, np.int64(1), size - 1, value, slots, word_bytes, word_ends)
    count = 0
    if number >= 0:
        which[0] = number
        count = 1
    elif is_label(word, np.int64(1), size - 1):  # fastText takes it for a label of the text and does not read it
        return 0
    return find_rows(word, size, lengths, there, places, num_words, which, count)


@inner
def _remember(word, size, value, kept_words, kept_sizes):  # type: ignore[no-untyped-def]
    """(place of the word in the memory, is it there); from now on it is. Place -1: too long to keep."""
    if size > kept_words.shape[1]:
        return np.int64(-1), False
    at = np.int64(value ^ (value >> np.uint32(15))) & (kept_sizes.size - 1)
    known = kept_sizes[at] == size
    if known:
        for i in range(size):
            if kept_words[at, i] != word[i]:
                known = False
                break
    if not known:
        kept_sizes[at] = size
        for i in range(size):
            kept_words[at, i] = word[i]
    return at, known


@njit(cache=True, nogil=True, error_model="numpy")
def best_labels(buf, offsets, scripts, tables, words, lengths, grams, rows, tree, written, arabic, found):  # type: ignore[no-untyped-def]
    """Write the best label (-1: none), its probability and the bits of `facts` of each text.

    Where the label is not among written[scripts[d]] the best of those takes its place; row 0 allows all. Texts of script
    `arabic` are read without marks. `tables`: kinds, lowers; `words`: slots, bytes, ends; `grams`: there, places; `tree`: nodes,
    children; `found`: labels, scores, facts.
    """
    kinds, lowers = tables
    slots, word_bytes, word_ends = words
    nodes, children = tree
    labels, scores, facts = found
    there, places = grams
    num_words = word_ends.size
    longest = np.int64(0)
    for d in range(len(offsets) - 1):
        longest = max(longest, offsets[d + 1] - offsets[d])
    word = np.empty(2 * longest + 8, np.uint8)
    word[0] = 0x3C
    hidden = np.empty(rows.shape[1], np.float32)
    which = np.empty(max(1, lengths[1]) * word.size + 1, np.int64)
    # Words come again and again: the sums of their rows are kept, the last one at each place.
    kept_words, kept_sizes = np.empty((_KEPT_WORDS + 1, _KEPT_BYTES), np.uint8), np.zeros(_KEPT_WORDS, np.int64)
    kept_sums, kept_counts = np.empty((_KEPT_WORDS + 1, hidden.size), np.float32), np.zeros(_KEPT_WORDS + 1, np.int64)
    stack, stack_scores = np.empty(2 * len(children) + 2, np.int64), np.empty(2 * len(children) + 2, np.float32)
    for d in range(len(offsets) - 1):
        pos, end = np.int64(offsets[d]), np.int64(offsets[d + 1])
        for k in range(hidden.size):
            hidden[k] = 0
        count, size, before, seen, fact = np.int64(0), np.int64(1), False, np.int64(0), np.int64(0)
        unmarked = scripts[d] == arabic
        while pos <= end:
            char = np.int64(buf[pos]) if pos < end else np.int64(0x20)
            if char < 0x80:
                kind = np.int64(kinds[char])
                # "</s>" is fastText's end of line: what follows would not be read.
                if char == 0x3C and pos + 3 < end and buf[pos + 1] == 0x2F and buf[pos + 2] | 32 == 0x73 and buf[pos + 3] == 0x3E:
                    kind, pos, fact = np.int64(SPACE_BIT), pos + 3, np.int64(SEEN_END)
                pos += 1
                if not kind & SPACE_BIT:
                    word[size] = lowers[char]
                    size += 1
            else:
                char, pos = decode(buf, pos, end)
                kind = np.int64(kinds[char])
                if kind & MARK_BIT and unmarked:
                    continue
                if char == _DOTTED_I:
                    size = _put(word, _put(word, size, np.int64(0x69)), np.int64(0x307))
                elif not kind & SPACE_BIT:
                    size = _put(word, size, _lowered(buf, char, pos, end, before, kinds, lowers))
            seen |= kind
            before = kind & LETTER_BIT != 0
            if kind & SPACE_BIT and size > 1:
                word[size] = 0x3E
                size += 1
                value = FNV_SEED
                for i in range(1, size - 1):
                    value = fnv(value, word[i])
                at, known = _remember(word, size, value, kept_words, kept_sizes)
                if not known:
                    num_rows = _read_word(
                        word, size, value, lengths, there, places, num_words, slots, word_bytes, word_ends, which
                    )
                    kept_counts[at] = num_rows
                    _add_rows(kept_sums, at, rows, which, num_rows)
                for k in range(hidden.size):
                    hidden[k] += kept_sums[at, k]
                count += kept_counts[at]
                size = np.int64(1)
        if seen & LETTER_BIT:
            fact |= SEEN_LETTER
        if lengths[3] >= 0:  # the end of the line is a word of most models
            for k in range(hidden.size):
                hidden[k] += rows[lengths[3], k]
            count += 1
        labels[d], scores[d] = _NO_LEAF, 0
        if count:
            scale = np.float32(1.0 / count)
            for k in range(hidden.size):
                hidden[k] *= scale
            label, score = _best_leaf(hidden, nodes, children, written, 0, stack, stack_scores)
            if label >= 0 and not written[scripts[d], label]:
                fact |= CORRECTED
                label, score = _best_leaf(hidden, nodes, children, written, scripts[d], stack, stack_scores)
            labels[d] = label
            if label >= 0:
                scores[d] = min(np.float32(math.exp(score)), np.float32(1))
        facts[d] = fact

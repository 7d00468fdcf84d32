"""Finds the leaf of a fastText model's softmax tree that fits the beginning of each text best.

The arithmetic of fastText 0.9 (Joulin et al. 2016; src/dictionary.cc, loss.cc) for models with
hierarchical softmax, in one pass over Arrow buffers: words parted by white space, their character
n-grams hashed, rows averaged, the Huffman tree walked from the root with the branches that cannot
win left out. Words are lower-cased on the way as `str.lower` does, but that any letter before a
capital sigma makes it a final one.

Cost: one hash step per byte and n-gram length, one row of `dim` floats per n-gram that the model
knows, some tens of tree nodes. Left out: word n-grams, and the rounding of the compiler that built
fastText: scores differ in the sixth digit.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tasks.kernels import inlined, inner
from tasks.kernels.models.fasttext_rows import (
    FNV_SEED,
    add_rows,
    find_rows,
    find_word,
    fnv,
    is_label,
    lines,
)
from tasks.kernels.models.lower_case import (
    CAPITAL_SIGMA,
    CODE_POINT,
    DOTTED_I,
    KIND_AT,
    LETTER_BIT,
    MARK_BIT,
    SPACE_BIT,
    lower_sigma,
    put,
)
from tasks.kernels.text.addresses import load_word, pointers, store_word
from tasks.kernels.text.bitmaps import trailing_zeros
from tasks.kernels.text.chars import decode

SEEN_LETTER, SEEN_END, CORRECTED = 1, 2, 4
"""Bits of `facts`: a letter was read, the text held fastText's end of line, the best label was not
of the text's script."""

_NO_LEAF = -1
_KEPT_BITS, _KEPT_PARTS = 12, 8
"""Sums of 2^bits words are kept. Of each word eight numbers: its bytes, up to 40 and zeros, and how
many rows it has."""
_KEPT_BYTES, _COUNT_AT = 40, 5
_LEAST_SCORE = np.float32(math.log(1e-5))

_HIGH, _LOW = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_EACH = np.uint64(0x0101010101010101)
_ONE, _SEVEN = np.uint64(1), np.uint64(7)
_MIX = np.uint64(0x9E3779B97F4A7C15)


def make_room(
    longest_text: int, lengths: np.ndarray, width: int, num_labels: int
) -> tuple[np.ndarray, ...]:
    """What `best_labels` writes to, for texts of up to so many bytes.

    A word, where its characters begin, its rows; kept words (none) and their sums; the mean of all
    rows; its products with all nodes; the nodes to be looked at, and their scores.
    """
    ngram = max(1, int(lengths[1]))
    longest_word = 3 * longest_text + 8  # a byte that is not a character is read as one of three
    return (
        np.empty(longest_word + ngram + _KEPT_BYTES, np.uint8),
        np.empty(longest_word + 1, np.int32),
        np.empty(ngram * longest_word + 2, np.int64),
        np.zeros(_KEPT_PARTS << _KEPT_BITS, np.uint64),
        lines((1 << _KEPT_BITS) + 1, width),
        lines(1, width),
        np.empty(num_labels, np.float32),
        np.empty(2 * num_labels, np.int64),
        np.empty(2 * num_labels, np.float32),
    )


@inner
def _best_leaf(products, children, num_nodes, written, row, stack, scores):  # type: ignore[no-untyped-def]
    """(leaf, log score) of the best of those in a row of `written`; node numbers as in fastText:
    leaves first, the root last."""
    num_leaves = num_nodes + 1
    best, best_score = np.int64(_NO_LEAF), _LEAST_SCORE
    stack[0], scores[0], depth = num_leaves + num_nodes - 1, np.float32(0), 1
    while depth:
        depth -= 1
        node, score = np.int64(stack[depth]), scores[depth]
        if score < best_score or (score == best_score and best != _NO_LEAF):
            continue
        if node < num_leaves:
            if written[row * num_leaves + node]:
                best, best_score = node, score
            continue
        exponential = np.float32(math.exp(-products[node - num_leaves]))
        right = np.float32(1.0 / np.float64(np.float32(1) + exponential))
        for side in range(2):  # the left is walked first: it lies on top
            part = right if side == 0 else np.float32(1.0 - np.float64(right))
            stack[depth] = children[2 * (node - num_leaves) + 1 - side]
            scores[depth] = score + np.float32(math.log(np.float64(part) + 1e-5))
            depth += 1
    return best, best_score


@inner
def _read_word(  # type: ignore[no-untyped-def]
    word, size, limit, sizes, slots, mask, word_bytes, word_ends, bits, firsts, starts, which
):
    """Write the rows of a word, word[1 : size - 1] between `<` and `>`, and of its n-grams into
    `which`; returns how many."""
    value = FNV_SEED
    for i in range(1, size - 1):
        value = fnv(value, word[i])
    first, last, count = np.int64(1), size - 1, np.int64(0)
    number = find_word(word, limit, first, last, value, slots, mask, word_bytes, word_ends)
    if number >= 0:
        which[0] = number
        count = np.int64(1)
    elif is_label(word, first, last):
        return np.int64(0)
    return find_rows(word, size, sizes, bits, firsts, starts, which, count)


@inlined
def _mix(key, more):  # type: ignore[no-untyped-def]
    key = (key ^ more) * _MIX
    return key ^ (key >> np.uint64(32))


@njit(cache=True, nogil=True, error_model="numpy")
def best_labels(  # type: ignore[no-untyped-def]
    buf, begins, ends, scripts, chars, words, lengths, grams, rows, tree, written, arabic, room,
    found,
):  # fmt: skip
    """Write the best label (-1: none), its probability and the bits of `facts` of each text,
    buf[begins[d]:ends[d]].

    Where the label is not among written[scripts[d]] the best of those takes its place; row 0 allows
    all. Texts of script `arabic` are read without marks. `chars`: `char_table`; `room`:
    `make_room`; `tree`: nodes and children of `tasks.fasttext.tree.SoftmaxTree`; `found`: labels,
    scores, facts; the rest as in `tasks.fasttext.files.FastTextModel`.
    """
    text, text_bytes, table = pointers(buf), np.int64(buf.size), pointers(chars)
    (slots, word_bytes, word_ends), slot_mask = pointers(words), np.int64(words[0].size - 1)
    (bits, firsts), (nodes, children) = pointers((grams, tree))
    dim, num_nodes = np.int64(tree[0].shape[0]), np.int64(tree[0].shape[1])
    word, starts, which, kept, sums, hidden, products, stack, stack_scores = pointers(room)
    word_room, allowed, num_labels = np.int64(room[0].size), pointers(written), written.shape[1]
    width, matrix = np.int64(rows.shape[1]), pointers(rows)
    sizes = lengths[0], lengths[1], lengths[2], np.int64(words[2].size), grams[0].size > 0
    end_of_line = lengths[3]
    labels, scores, facts = found
    word[0] = 0x3C
    for d in range(len(ends)):
        pos, end = np.int64(begins[d]), np.int64(ends[d])
        for k in range(width):
            hidden[k] = 0
        count, size, before, seen, fact = np.int64(0), np.int64(1), False, np.int64(0), np.int64(0)
        key, letters_seen = np.uint64(0), np.uint64(0)
        unmarked = scripts[d] == arabic
        while pos <= end:
            if pos + 8 <= text_bytes and text[pos] < 0x80:
                # Eight characters at once, up to what is not ASCII, white space or any control,
                # `<`, or the end of the text.
                eight = load_word(text, pos)
                low = eight & _LOW
                stops = (
                    eight
                    | ~((low | _HIGH) - np.uint64(0x21) * _EACH)
                    | ~(((low ^ np.uint64(0x3C) * _EACH) | _HIGH) - _EACH)
                )
                stops &= _HIGH
                if end - pos < 8:
                    stops |= _HIGH << np.uint64(8 * (end - pos))
                capitals = (
                    (low + np.uint64(0x3F) * _EACH) & ~(low + np.uint64(0x25) * _EACH) & _HIGH
                )
                small = eight | (capitals >> np.uint64(2))
                low |= capitals >> np.uint64(2)
                letters = (low + np.uint64(0x1F) * _EACH) & ~(low + np.uint64(0x05) * _EACH) & _HIGH
                inside = ((stops & (~stops + _ONE)) >> _SEVEN) - _ONE
                num = trailing_zeros(stops) >> 3
                store_word(word, size, small)
                letters &= inside
                letters_seen |= letters
                key = _mix(key, small & inside)
                pos += num
                size += num
                if num:
                    before = letters >> np.uint64(8 * num - 1) != 0
                if num == 8:
                    continue
            if pos < end and text[pos] >= 0x80:
                char, pos = decode(text, pos, end)
                entry = table[char]
                kind, lowered = np.int64(entry >> KIND_AT), np.int64(entry & CODE_POINT)
                if kind & MARK_BIT and unmarked:
                    continue
                if not kind & SPACE_BIT:
                    key = _mix(key, np.uint64(char))
                    if char == CAPITAL_SIGMA:
                        lowered = np.int64(lower_sigma(text, pos, end, before, table))
                    if char == DOTTED_I:
                        size = put(word, put(word, size, np.int64(0x69)), np.int64(0x307))
                    else:
                        size = put(word, size, lowered)
            else:
                char = np.int64(text[pos]) if pos < end else np.int64(0x20)
                entry = table[char]
                kind = np.int64(entry >> KIND_AT)
                # "</s>" is fastText's end of line: what follows would not be read.
                if (
                    char == 0x3C
                    and pos + 3 < end
                    and text[pos + 1] == 0x2F
                    and text[pos + 2] | 32 == 0x73
                    and text[pos + 3] == 0x3E
                ):
                    kind, pos, fact = np.int64(SPACE_BIT), pos + 3, np.int64(SEEN_END)
                pos += 1
                if not kind & SPACE_BIT:
                    key = _mix(key, np.uint64(char))
                    word[size] = entry & CODE_POINT
                    size += 1
            seen |= kind
            before = kind & LETTER_BIT != 0
            if not kind & SPACE_BIT:
                continue
            if size > 1:
                at, known = np.int64(1 << _KEPT_BITS), False
                if size - 1 <= _KEPT_BYTES:
                    at = np.int64(key >> np.uint64(64 - _KEPT_BITS))
                    different = np.uint64(0)
                    for i in range(0, _KEPT_BYTES, 8):
                        store_word(word, size + i, np.uint64(0))
                    for i in range(_KEPT_BYTES // 8):
                        different |= kept[_KEPT_PARTS * at + i] ^ load_word(word, 1 + 8 * i)
                    known = different == 0
                    if not known:
                        for i in range(_KEPT_BYTES // 8):
                            kept[_KEPT_PARTS * at + i] = load_word(word, 1 + 8 * i)
                if known:
                    num_rows = np.int64(kept[_KEPT_PARTS * at + _COUNT_AT])
                else:
                    word[size] = 0x3E
                    num_rows = _read_word(
                        word, size + 1, word_room, sizes, slots, slot_mask, word_bytes, word_ends,
                        bits, firsts, starts, which,
                    )  # fmt: skip
                    for k in range(width):
                        sums[width * at + k] = 0
                    add_rows(sums, width * at, matrix, which, num_rows, width)
                    if at < 1 << _KEPT_BITS:
                        kept[_KEPT_PARTS * at + _COUNT_AT] = np.uint64(num_rows)
                which[0] = at
                add_rows(hidden, np.int64(0), sums, which, np.int64(1), width)
                count += num_rows
            size, key = np.int64(1), np.uint64(0)
        if seen & LETTER_BIT or letters_seen:
            fact |= SEEN_LETTER
        if end_of_line >= 0:  # the end of the line is a word of most models
            which[0] = end_of_line
            add_rows(hidden, np.int64(0), matrix, which, np.int64(1), width)
            count += 1
        labels[d], scores[d] = _NO_LEAF, 0
        if count:
            scale = np.float32(1.0 / count)
            for k in range(width):
                hidden[k] *= scale
            for i in range(num_nodes):
                products[i] = 0
            for k in range(dim):
                for i in range(num_nodes):
                    products[i] += nodes[k * num_nodes + i] * hidden[k]
            label, score = _best_leaf(
                products, children, num_nodes, allowed, np.int64(0), stack, stack_scores
            )
            if label >= 0 and not allowed[scripts[d] * num_labels + label]:
                fact |= CORRECTED
                script = np.int64(scripts[d])
                label, score = _best_leaf(
                    products, children, num_nodes, allowed, script, stack, stack_scores
                )
            labels[d] = label
            if label >= 0:
                scores[d] = min(np.float32(math.exp(score)), np.float32(1))
        facts[d] = fact

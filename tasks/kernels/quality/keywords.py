"""Finds the terms of lists in texts: tens of thousands of terms in one walk over the pieces of a
text.

Case is folded character by character (`tasks.kernels.text.chars`) and a run of white space is one
space. A boundary stands between any two characters but these: letters, digits, connectors and marks
in a row, and a mark and the letter it stands on. Letters of scripts written without spaces are
words of their own, and an apostrophe ends a word (`l'école`, `John's`). What stands between two
neighbouring boundaries is a *piece*. A match begins and ends at a boundary, so a term is a row of
whole pieces, and the terms are a trie whose edges are pieces. Every occurrence of every term
counts, also those that overlap; equal folded terms of a list are one.

Pieces are known by 64-bit hashes. Different pieces of up to eight ASCII bytes have different
hashes. For longer ones a wrong hit has a chance below edges / 2**64 a piece of text: 1 in 10**6 for
10,000 terms and 10**9 words. A bitmap of first pieces keeps the words that begin no term away from
the table. Cost: linear in the text, plus the pieces of a term at each place where one begins; 50
to 100 bytes a term. Left out: normalisation forms (é is not e and an accent), stemming, spellings
with invisible characters inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.text.addresses import load_word, pointers
from tasks.kernels.text.chars import (
    ASCII_HIGH_BITS,
    ascii_between,
    char_classes,
    decode,
    fold_table,
    mix64,
)
from tasks.kernels.text.chars import MARK as MARK_CLASS
from tasks.kernels.text.chars import SPACE as SPACE_CLASS
from tasks.kernels.text.chars import UNSEGMENTED as UNSEGMENTED_CLASS

OUTSIDE, WORD, MARK, UNSEGMENTED, SPACE = range(5)
_ENDS, _HAS_CHILDREN = 1, 2
_BLANK = ord(" ")
_FILTER_BITS_PER_PIECE = 32
_ONES = np.uint64(0x0101010101010101)


class Matcher(NamedTuple):
    """The trie of terms as arrays; node 0 is the root.

    symbols: uint32[0x110000], folded code point << 3 | kind. filter: uint8[power of two], a bit for
    each hash of a first piece. edges: uint64[power of two, 2], key of (node, piece) and
    child << 2 | whether the child has children << 1 | whether a term ends there; 0 where empty.
    lists: uint64[nodes], bit l: a term of list l ends here.
    """

    symbols: np.ndarray
    filter: np.ndarray
    edges: np.ndarray
    lists: np.ndarray


def fold_text(text: str) -> str:
    """Folded characters, with one space for a run of white space, and none at the ends."""
    folds = fold_table()
    return " ".join("".join(chr(folds[ord(char)]) for char in text).split())


def build_matcher(terms: Mapping[str, int]) -> Matcher:
    """The matcher of folded terms {term: bits of the lists it is in}."""
    symbols = _symbols()
    children: dict[tuple[int, int], int] = {}
    lists = [0]
    for term, bits in terms.items():
        node = 0
        for piece in _piece_hashes(np.frombuffer(term.encode(), np.uint8), symbols).tolist():
            node = children.setdefault((node, piece), len(lists))
            if node == len(lists):
                lists.append(0)
        lists[node] |= bits
    parents, pieces = np.array(list(children), np.uint64).reshape(-1, 2).T.copy()
    first = pieces[parents == 0]
    filter_bits = np.zeros(_power_of_two(_FILTER_BITS_PER_PIECE * len(first)), bool)
    filter_bits[(first & np.uint64(len(filter_bits) - 1)).astype(np.int64)] = True
    nodes = np.array(list(children.values()), np.int64)
    ends = np.array(lists, np.uint64)[nodes] != 0
    has_children = np.isin(nodes, parents.astype(np.int64))
    edges = np.zeros((_power_of_two(2 * len(pieces)), 2), np.uint64)
    _add_edges(parents, pieces, nodes << 2 | has_children << 1 | ends, edges)
    packed = np.packbits(filter_bits, bitorder="little")
    return Matcher(symbols, packed, edges, np.array(lists, np.uint64))


def _power_of_two(size: int) -> int:
    """The smallest of at least `size` and a byte of bits."""
    return 1 << max(3, (size - 1).bit_length())


def _symbols() -> np.ndarray:
    classes, folds = char_classes(), fold_table()
    kinds = np.where(classes >= MARK_CLASS, WORD, OUTSIDE).astype(np.uint32)
    kinds[classes == MARK_CLASS] = MARK
    kinds[classes == UNSEGMENTED_CLASS] = UNSEGMENTED
    symbols = folds << np.uint32(3) | kinds[folds]
    symbols[classes == SPACE_CLASS] = _BLANK << 3 | SPACE
    return symbols


@inner
def _joined(before, kind):  # type: ignore[no-untyped-def]
    """Whether no boundary stands between characters of these kinds."""
    if kind == MARK:
        return before in (WORD, MARK, UNSEGMENTED)
    return kind == WORD and before in (WORD, MARK)


@inner
def _next_piece(buf, pos, end, symbols):  # type: ignore[no-untyped-def]
    """Where the piece at `pos` < `end` ends, and its hash.

    The hash is over numbers of eight folded bytes; a character beyond ASCII is three bytes that
    begin with a high bit, within one number.
    """
    if buf[pos] == _BLANK and pos + 1 < end and buf[pos + 1] > _BLANK and buf[pos + 1] < 0x80:
        return pos + 1, mix64(np.uint64(_BLANK))
    value, before = np.uint64(0), np.int64(OUTSIDE)
    # Eight characters of an ASCII word at once.
    while pos + 8 <= end and buf[pos] < 0x80:
        word = load_word(buf, pos)
        seven = word & ~ASCII_HIGH_BITS
        letters = ascii_between(seven | np.uint64(0x20) * _ONES, 0x61, 0x7A)
        members = letters | ascii_between(seven, 0x30, 0x39) | ascii_between(seven, 0x5F, 0x5F)
        others = (~members | word) & ASCII_HIGH_BITS
        lowered = word | (letters >> np.uint64(2))
        if others == 0:
            value, before, pos = mix64(value ^ lowered), np.int64(WORD), pos + 8
            continue
        # All bits of the bytes before the first other one.
        within = (((others - np.uint64(1)) & ~others) >> np.uint64(7)) & _ONES
        size = np.int64((within * _ONES) >> np.uint64(56))
        if buf[pos + size] >= 0x80 or (size == 0 and before == OUTSIDE):
            break
        if size:
            value = mix64(value ^ (lowered & (within * np.uint64(0xFF))))
        return pos + size, value
    packed, filled = np.uint64(0), np.uint64(0)
    is_first = before == OUTSIDE
    while pos < end:
        if buf[pos] < 0x80:
            about, after = np.int64(symbols[buf[pos]]), pos + 1
        else:
            code_point, after = decode(buf, pos, end)
            about = np.int64(symbols[code_point])
        folded, kind = np.uint64(about >> 3), about & 7
        if not is_first and not _joined(before, kind):
            break
        num_bits = np.uint64(8)
        if folded >= 0x80:
            folded = (
                np.uint64(0x80)
                | folded >> np.uint64(16)
                | (folded & np.uint64(0xFFFF)) << np.uint64(8)
            )
            num_bits = np.uint64(24)
        if filled + num_bits > 64:
            value, packed, filled = mix64(value ^ packed), np.uint64(0), np.uint64(0)
        packed |= folded << filled
        filled += num_bits
        pos, before, is_first = after, kind, False
        # No mark begins with one of these bytes, up to U+9FFF.
        if kind == OUTSIDE or (kind == UNSEGMENTED and pos < end and 0xE4 <= buf[pos] <= 0xE9):
            break
        if kind == SPACE:
            pos = _space_end(buf, pos, end, symbols)
            break
    return pos, mix64(value ^ packed) if filled else value


@inner
def _space_end(buf, pos, end, symbols):  # type: ignore[no-untyped-def]
    while pos < end:
        code_point, after = decode(buf, pos, end)
        if symbols[code_point] & 7 != SPACE:
            break
        pos = after
    return pos


@inner
def _edge_key(node, piece):  # type: ignore[no-untyped-def]
    return piece ^ np.uint64(node) * np.uint64(0x9E3779B97F4A7C15)


@inner
def _child(edges, mask, node, piece):  # type: ignore[no-untyped-def]
    """What `edges` has of the child of a node by a piece, 0 where there is none."""
    key = _edge_key(node, piece)
    slot = np.int64(key & mask)
    while edges[2 * slot + 1] != 0 and edges[2 * slot] != key:
        slot = (slot + 1) & np.int64(mask)
    return np.int64(edges[2 * slot + 1])


@njit(cache=True, nogil=True)
def _piece_hashes(term, symbols):  # type: ignore[no-untyped-def]
    hashes = np.empty(len(term), np.uint64)
    count, pos = 0, np.int64(0)
    while pos < len(term):
        pos, hashes[count] = _next_piece(pointers(term), pos, len(term), pointers(symbols))
        count += 1
    return hashes[:count]


@njit(cache=True, nogil=True)
def _add_edges(parents, pieces, values, edges):  # type: ignore[no-untyped-def]
    mask = len(edges) - 1
    for i in range(len(parents)):
        key = _edge_key(parents[i], pieces[i])
        slot = np.int64(key & np.uint64(mask))
        while edges[slot, 1] != 0:
            slot = (slot + 1) & mask
        edges[slot, 0], edges[slot, 1] = key, np.uint64(values[i])


@njit(cache=True, nogil=True)
def find_terms(texts, begins, matcher, asked, located, counts, spans):  # type: ignore[no-untyped-def]
    """Count the occurrences of terms by document and list, and locate those of some lists.

    asked: uint64[documents], bits of the lists that are looked for. located: uint64, bits of the
    lists whose spans are wanted. counts: int64[documents, lists], added to. spans: int64[room, 4],
    document, list, start, stop in bytes of the document, in order of start and stop. Returns how
    many spans there are, which may be more than there is room for.
    """
    num_spans = 0
    filter_mask = np.uint64(8 * len(matcher.filter) - 1)
    edge_mask = np.uint64(len(matcher.edges) - 1)
    # Helpers are given where arrays lie: counting references to arrays was over half of the time.
    buf, symbols, first_pieces, edges, lists = pointers(
        (texts, matcher.symbols, matcher.filter, matcher.edges, matcher.lists)
    )
    for document in range(len(begins) - 1):
        begin, end = begins[document], begins[document + 1]
        pos = begin if asked[document] != 0 else end
        while pos < end:
            if buf[pos] == _BLANK:  # begins no term
                pos += 1
                continue
            start = pos
            pos, piece = _next_piece(buf, start, end, symbols)
            bit = piece & filter_mask
            if not first_pieces[bit >> np.uint64(3)] >> (bit & np.uint64(7)) & 1:
                continue
            stop, child = pos, _child(edges, edge_mask, np.int64(0), piece)
            while child != 0:
                found, number = np.uint64(0), 0
                if child & _ENDS:
                    found = lists[child >> 2] & asked[document]
                while found != 0:
                    if found & np.uint64(1):
                        counts[document, number] += 1
                        if located >> np.uint64(number) & np.uint64(1):
                            if num_spans < len(spans):
                                spans[num_spans, 0], spans[num_spans, 1] = document, number
                                spans[num_spans, 2] = start - begin
                                spans[num_spans, 3] = stop - begin
                            num_spans += 1
                    found >>= np.uint64(1)
                    number += 1
                if not child & _HAS_CHILDREN or stop == end:
                    break
                stop, piece = _next_piece(buf, stop, end, symbols)
                child = _child(edges, edge_mask, child >> 2, piece)
    return num_spans

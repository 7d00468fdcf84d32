"""Where do terms of lists occur in texts? One walk of an Aho–Corasick automaton, tens of thousands
of terms at once.

Aho and Corasick 1975, with two changes. Symbols are folded characters (`tasks.kernels.text.chars`),
a run of white space is one space. A match begins and ends at a boundary, so no match can begin
inside a word: the automaton starts there only, and failure links that would lead into the middle of
a word are not kept.

A boundary stands between any two characters but these: letters, digits, connectors and marks in a
row, and a mark and the letter it stands on. Letters of scripts written without spaces are words of
their own, an apostrophe ends a word (`l'école`, `John's`). Every occurrence of every term counts,
also those that overlap; equal folded terms of a list are one.

A word enters the automaton only if it is the first of some term, as far as a hash can tell. States
are numbered so that the children of one stand in a row: a bitmap of the 64 most frequent symbols
and the number of the first child are a transition in one load, taken or not. Those by rarer symbols
are in an open-addressing table, those of the start are dense. Cost: linear in the text and the
occurrences; some 30 bytes per character of a term, 60 with rare symbols. Left out: normalisation
forms (é is not e and an accent), stemming, spellings with invisible characters inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.chars import MARK as MARK_CLASS
from tasks.kernels.text.chars import SPACE as SPACE_CLASS
from tasks.kernels.text.chars import UNSEGMENTED as UNSEGMENTED_CLASS
from tasks.kernels.text.chars import char_classes, decode, fold_table

OUTSIDE, WORD, MARK, UNSEGMENTED, SPACE = range(5)
CHILD_BITS, SYMBOL_BITS = 24, 16
NUM_FREQUENT = 64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Automaton:
    """Terms as arrays; state 0 is the start, symbol 0 every character of no term.

    symbols: uint32[0x110000], symbol << 3 | kind of each code point. starts: int32[symbols],
    children of the start. nodes: uint64[states, 2], bitmap of the symbols under 64 that go on, and
    first child << 32 | the longest term that ends here. words: uint8[power of two], a bit for each
    hash of a first word. edges: uint64[power of two], state << 40 | symbol << 24 | child for the
    other symbols, 0 where empty. fails: int32[states]. depths: int32[states], characters. lists:
    uint64[states], bit l: this is a term of list l.
    """

    symbols: np.ndarray
    starts: np.ndarray
    words: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray
    fails: np.ndarray
    depths: np.ndarray
    lists: np.ndarray

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return (
            self.symbols,
            self.starts,
            self.words,
            self.nodes,
            self.edges,
            self.fails,
            self.depths,
            self.lists,
        )


def fold_text(text: str) -> str:
    """Folded characters, with one space for a run of white space, and none at the ends."""
    folds = fold_table()
    return " ".join("".join(chr(folds[ord(char)]) for char in text).split())


def build_automaton(terms: Mapping[str, int]) -> Automaton:
    """The automaton of folded terms {term: bits of the lists it is in}. Raises ValueError where
    there is no room for them."""
    kinds = _kinds()
    frequencies = Counter(char for term in terms for char in term)
    alphabet = {
        char: n
        for n, char in enumerate(
            sorted(frequencies, key=lambda char: (-frequencies[char], char)), start=1
        )
    }
    if len(alphabet) >= 1 << SYMBOL_BITS:
        raise ValueError(
            f"{len(alphabet)} different characters are more than {(1 << SYMBOL_BITS) - 1}"
        )
    children: dict[int, int] = {}
    parents, last, depths, lists = [0], [0], [0], [0]
    for term, bits in sorted(terms.items()):
        state = 0
        for char in term:
            edge = state << SYMBOL_BITS | alphabet[char]
            state = children.get(edge, 0)
            if not state:
                state = children[edge] = len(parents)
                parents.append(edge >> SYMBOL_BITS)
                last.append(ord(char))
                depths.append(depths[parents[-1]] + 1)
                lists.append(0)
        lists[state] |= bits
    if len(parents) >= 1 << CHILD_BITS:
        raise ValueError(
            f"{len(parents)} beginnings of terms are more than {(1 << CHILD_BITS) - 1}"
        )
    fails, outputs = [0] * len(parents), [0] * len(parents)
    for state in np.argsort(depths, kind="stable").tolist()[1:]:
        symbol, parent = alphabet[chr(last[state])], parents[state]
        fail, found = parent, 0
        while fail and not found:
            fail = fails[fail]
            # Into the start only where a term may begin.
            if fail or not _joined.py_func(kinds[last[parent]], kinds[last[state]]):
                found = children.get(fail << SYMBOL_BITS | symbol, 0)
        fails[state] = found
        outputs[state] = state if lists[state] else outputs[found]
    depth, parent = np.array(depths, np.int64), np.array(parents, np.int64)
    symbols = np.array([0, *(alphabet[chr(code_point)] for code_point in last[1:])], np.int64)
    number = _breadth_first(depth, parent, symbols)
    order = np.argsort(number)
    symbols, parent = symbols[order], number[parent[order]]
    states = np.arange(len(order))
    starts = np.zeros(len(alphabet) + 1, np.int32)
    starts[symbols[1:][parent[1:] == 0]] = states[1:][parent[1:] == 0]
    nodes = np.zeros((len(order), 2), np.uint64)
    frequent = np.flatnonzero((symbols < NUM_FREQUENT) & (states > 0))
    np.bitwise_or.at(
        nodes[:, 0], parent[frequent], np.uint64(1) << symbols[frequent].astype(np.uint64)
    )
    # The children by frequent symbols stand first among those of a state.
    first = np.unique(parent[frequent], return_index=True)
    nodes[first[0], 1] = frequent[first[1]].astype(np.uint64) << np.uint64(32)
    nodes[:, 1] |= number[np.array(outputs)[order]].astype(np.uint64)
    rare = np.flatnonzero(symbols >= NUM_FREQUENT)
    keys = (parent[rare] << SYMBOL_BITS | symbols[rare]).astype(np.uint64)
    return Automaton(
        _symbols(alphabet, kinds),
        starts,
        _first_words(terms, alphabet, kinds),
        nodes,
        _edge_table(keys, rare.astype(np.uint64)),
        number[np.array(fails)[order]].astype(np.int32),
        depth[order].astype(np.int32),
        np.array(lists, np.uint64)[order],
    )


def _breadth_first(depths: np.ndarray, parents: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """The number of each state in order of depth, number of the parent and symbol; 0 for the
    start."""
    numbers = np.zeros(len(depths), np.int64)
    by_depth = np.argsort(depths, kind="stable")
    begins = np.searchsorted(depths[by_depth], np.arange(int(depths.max()) + 2))
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        level = by_depth[begin:end]
        numbers[level[np.lexsort((symbols[level], numbers[parents[level]]))]] = np.arange(
            begin, end
        )
    return numbers


def _kinds() -> np.ndarray:
    """Kind of each folded code point, uint8[0x110000]."""
    classes = char_classes()
    kinds = np.where(classes >= MARK_CLASS, WORD, OUTSIDE).astype(np.uint8)
    for kind, of_class in (
        (MARK, MARK_CLASS),
        (UNSEGMENTED, UNSEGMENTED_CLASS),
        (SPACE, SPACE_CLASS),
    ):
        kinds[classes == of_class] = kind
    return kinds


def _symbols(alphabet: Mapping[str, int], kinds: np.ndarray) -> np.ndarray:
    numbers = np.zeros(len(kinds), np.uint32)
    numbers[[ord(char) for char in alphabet]] = list(alphabet.values())
    table = numbers << np.uint32(3) | kinds
    folded = table[fold_table()]
    folded[kinds == SPACE] = numbers[ord(" ")] << 3 | SPACE
    return folded


def _first_words(
    terms: Mapping[str, int], alphabet: Mapping[str, int], kinds: np.ndarray
) -> np.ndarray:
    """Bits of the hashes that `_walk_word` gives the words at the beginnings of terms."""
    hashes = []
    for term in terms:
        value = 0
        for char in takewhile(lambda char: kinds[ord(char)] in (WORD, MARK), term):
            value = (value ^ alphabet[char]) * int(_SPREAD) & 0xFFFFFFFFFFFFFFFF
        hashes.append(value)
    size = 1 << max(3, (2 * len(hashes)).bit_length())
    table = np.zeros(size, np.uint8)
    bits = np.array(hashes, np.uint64) >> np.uint64(64 - (8 * size - 1).bit_length())
    np.bitwise_or.at(
        table,
        (bits >> np.uint64(3)).astype(np.int64),
        np.uint8(1) << (bits & np.uint64(7)).astype(np.uint8),
    )
    return table


def _edge_table(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    size = 1 << max(4, int(4 * len(keys) - 1).bit_length())
    table = np.zeros(size, np.uint64)
    shift = np.uint64(64 - (size.bit_length() - 1))
    entries = keys << np.uint64(CHILD_BITS) | values
    slots = (keys * _SPREAD >> shift).astype(np.int64)
    while len(entries):
        # The first of those that want a free slot takes it; the others try the next one.
        free = table[slots] == 0
        taken, first = np.unique(slots[free], return_index=True)
        winners = np.flatnonzero(free)[first]
        table[taken] = entries[winners]
        left = np.ones(len(entries), bool)
        left[winners] = False
        entries, slots = entries[left], (slots[left] + 1) & (size - 1)
    return table


@inner
def _joined(before, kind):  # type: ignore[no-untyped-def]
    """Whether no boundary stands between characters of these kinds."""
    if kind == MARK:
        return before in (WORD, MARK, UNSEGMENTED)
    return kind == WORD and before in (WORD, MARK)


@inner
def _num_ones(bits):  # type: ignore[no-untyped-def]
    """Bits that are set, by adding neighbours (Warren, Hacker's Delight, section 5-1)."""
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + (
        (bits >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inner
def _rare_child(edges, mask, shift, state, symbol):  # type: ignore[no-untyped-def]
    key = np.uint64(state) << np.uint64(16) | np.uint64(symbol)
    slot = np.int64(key * np.uint64(0x9E3779B97F4A7C15) >> shift)
    while True:
        entry = edges[slot]
        if entry == 0:
            return np.int64(0)
        if entry >> np.uint64(24) == key:
            return np.int64(entry & np.uint64(0xFFFFFF))
        slot = (slot + 1) & mask


@inner
def _child(nodes, edges, mask, shift, state, symbol):  # type: ignore[no-untyped-def]
    if symbol >= 64:
        return _rare_child(edges, mask, shift, state, symbol)
    place = np.uint64(1) << np.uint64(symbol)
    bitmap = nodes[2 * state]
    if bitmap & place == 0:
        return np.int64(0)
    return np.int64(nodes[2 * state + 1] >> np.uint64(32)) + _num_ones(
        bitmap & (place - np.uint64(1))
    )


@inner
def _walk_word(buf, pos, end, symbols, words, shift):  # type: ignore[no-untyped-def]
    """Where the word at `pos` ends, and whether it may be the first of a term."""
    value, is_of_terms = np.uint64(0), True
    while pos < end:
        lead = buf[pos]
        if lead < 0x80:
            about, after = symbols[lead], pos + 1
        else:
            code_point, after = decode(buf, pos, end)
            about = symbols[code_point]
        kind = about & 7
        if kind == OUTSIDE or kind > MARK:
            break
        is_of_terms &= about > 7
        value = (value ^ np.uint64(about >> 3)) * np.uint64(0x9E3779B97F4A7C15)
        pos = after
    value >>= shift
    return pos, is_of_terms and (
        words[np.int64(value >> np.uint64(3))] >> (value & np.uint64(7))
    ) & np.uint64(1) != 0


@inner
def _walk_back(buf, begin, stop, depth, symbols):  # type: ignore[no-untyped-def]
    """Where the `depth` characters before `stop` begin, a run of white space being one."""
    pos, was_space = stop, False
    while True:
        previous = pos - 1
        if previous < begin:
            return pos
        while previous > begin and buf[previous] & 0xC0 == 0x80:
            previous -= 1
        code_point, _ = decode(buf, previous, stop)
        is_space = symbols[code_point] & 7 == SPACE
        if not (is_space and was_space):
            if depth == 0:
                return pos
            depth -= 1
        pos, was_space = previous, is_space


@njit(cache=True, nogil=True)
def find_terms(  # type: ignore[no-untyped-def]
    texts,
    begins,
    symbols,
    starts,
    words,
    nodes,
    edges,
    fails,
    depths,
    lists,
    asked,
    located,
    counts,
    spans,
):
    """Count the occurrences of terms by document and list, and locate those of some lists.

    asked: uint64[documents], bits of the lists that are looked for. located: uint64, bits of the
    lists whose spans are wanted. counts: int64[documents, lists], added to. spans: int64[room, 4],
    document, list, start, stop in bytes of the document, in order of stops. Returns how many spans
    there are, which may be more than there is room for.
    """
    num_spans = 0
    shift = np.uint64(64)
    while np.int64(1) << (np.int64(64) - np.int64(shift)) < len(edges):
        shift -= np.uint64(1)
    shift_of_words = np.uint64(61)
    while np.int64(8) << (np.int64(61) - np.int64(shift_of_words)) < 8 * len(words):
        shift_of_words -= np.uint64(1)
    # Helpers are given where arrays lie: counting references to arrays was over half of the time.
    mask = len(edges) - 1
    buf, symbols, starts, words, nodes, edges = pointers(
        (texts, symbols, starts, words, nodes, edges)
    )
    for document in range(len(begins) - 1):
        begin, end = begins[document], begins[document + 1]
        if asked[document] == 0:
            continue
        pos, state, before = begin, np.int64(0), np.int64(OUTSIDE)
        while pos < end:
            at = pos
            if buf[pos] < 0x80:
                about, pos = np.int64(symbols[buf[pos]]), pos + 1
            else:
                code_point, pos = decode(buf, pos, end)
                about = np.int64(symbols[code_point])
            symbol, kind = about >> 3, about & 7
            if kind == SPACE:
                while pos < end:
                    if buf[pos] < 0x80:
                        code_point, after = np.int64(buf[pos]), pos + 1
                    else:
                        code_point, after = decode(buf, pos, end)
                    if symbols[code_point] & 7 != SPACE:
                        break
                    pos = after
            step = np.int64(0)
            if symbol != 0:
                while state != 0:
                    step = _child(nodes, edges, mask, shift, state, symbol)
                    if step != 0:
                        break
                    state = np.int64(fails[state])
            else:
                state = np.int64(0)
            if state == 0:
                if kind in (WORD, MARK):
                    # Nothing can begin inside a word, nor in one that no term begins with.
                    stop, may_begin = _walk_word(buf, at, end, symbols, words, shift_of_words)
                    if _joined(before, kind) or not may_begin:
                        pos, before = stop, np.int64(WORD)
                        continue
                step = np.int64(starts[symbol])
            state, before = step, kind
            if state == 0:
                continue
            hit = np.int64(nodes[2 * state + 1] & np.uint64(0xFFFFFFFF))
            if hit == 0:
                continue
            if pos < end:
                code_point, _ = decode(buf, pos, end)
                if _joined(kind, np.int64(symbols[code_point] & 7)):
                    continue
            while hit != 0:
                found = lists[hit] & asked[document]
                start = np.int64(-1)
                number = 0
                while found != 0:
                    if found & np.uint64(1):
                        counts[document, number] += 1
                        if located >> np.uint64(number) & np.uint64(1):
                            if start < 0:
                                start = _walk_back(buf, begin, pos, depths[hit], symbols)
                            if num_spans < len(spans):
                                spans[num_spans, 0], spans[num_spans, 1] = document, number
                                spans[num_spans, 2], spans[num_spans, 3] = (
                                    start - begin,
                                    pos - begin,
                                )
                            num_spans += 1
                    found >>= np.uint64(1)
                    number += 1
                hit = np.int64(nodes[2 * fails[hit] + 1] & np.uint64(0xFFFFFFFF))
    return num_spans

"""Where do terms of lists occur in texts? One walk of an Aho–Corasick automaton, tens of thousands of terms at once.

Aho and Corasick 1975, with two changes. Symbols are folded characters (`tasks.kernels.chars`), and a run of white space is one
space. A match begins and ends at a boundary, so no match can begin inside a word: the automaton starts there only, and failure
links that would lead into the middle of a word are not kept. In segmented text the links are short, and most of a word is skipped.

A boundary stands between any two characters but these: letters, digits, connectors and marks in a row, and a mark and the letter
it stands on. Letters of scripts written without spaces are words of their own, an apostrophe ends a word (`l'école`, `John's`).
Every occurrence of every term counts, also those that overlap; equal folded terms of a list are one.

Transitions are one open-addressing table of (state, symbol) with the child in the same 8 bytes; those of the start are dense.
Cost: linear in the text and the occurrences; 32 bytes of table per character of a term. Left out: normalisation forms (é is not
e and an accent), stemming, spellings with invisible characters inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit

from tasks.kernels import inner
from tasks.kernels.chars import MARK as MARK_CLASS
from tasks.kernels.chars import SPACE as SPACE_CLASS
from tasks.kernels.chars import UNSEGMENTED as UNSEGMENTED_CLASS
from tasks.kernels.chars import char_classes, decode, fold_table

OUTSIDE, WORD, MARK, UNSEGMENTED, SPACE = range(5)
CHILD_BITS, SYMBOL_BITS = 24, 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Automaton:
    """Terms as arrays; state 0 is the start, symbol 0 every character of no term.

    symbols: uint32[0x110000], symbol << 3 | kind of each code point. starts: int32[symbols], children of the start.
    edges: uint64[power of two], state << 40 | symbol << 24 | child, 0 where empty. fails: int32[states].
    outputs: int32[states], the longest term that ends in a state, as its state. depths: int32[states], characters.
    lists: uint64[states], bit l: this is a term of list l.
    """

    symbols: np.ndarray
    starts: np.ndarray
    edges: np.ndarray
    fails: np.ndarray
    outputs: np.ndarray
    depths: np.ndarray
    lists: np.ndarray

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.symbols, self.starts, self.edges, self.fails, self.outputs, self.depths, self.lists)


def fold_text(text: str) -> str:
    """Folded characters, with one space for a run of white space, and none at the ends."""
    folds = fold_table()
    return " ".join("".join(chr(folds[ord(char)]) for char in text).split())


def build_automaton(terms: Mapping[str, int]) -> Automaton:
    """The automaton of folded terms {term: bits of the lists it is in}. Raises ValueError where there is no room for them."""
    kinds = _kinds()
    alphabet = {char: number for number, char in enumerate(sorted(set().union(*map(set, terms))), start=1)}
    if len(alphabet) >= 1 << SYMBOL_BITS:
        raise ValueError(f"{len(alphabet)} different characters are more than {(1 << SYMBOL_BITS) - 1}")
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
        raise ValueError(f"{len(parents)} beginnings of terms are more than {(1 << CHILD_BITS) - 1}")
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
    keys = np.fromiter(children, np.uint64, len(children))
    values = np.fromiter(children.values(), np.uint64, len(children))
    starts = np.zeros(len(alphabet) + 1, np.int32)
    for symbol in alphabet.values():
        starts[symbol] = children.get(symbol, 0)
    return Automaton(
        _symbols(alphabet, kinds),
        starts,
        _edge_table(keys, values),
        np.array(fails, np.int32),
        np.array(outputs, np.int32),
        np.array(depths, np.int32),
        np.array(lists, np.uint64),
    )


def _kinds() -> np.ndarray:
    """Kind of each folded code point, uint8[0x110000]."""
    classes = char_classes()
    kinds = np.where(classes >= MARK_CLASS, WORD, OUTSIDE).astype(np.uint8)
    for kind, of_class in ((MARK, MARK_CLASS), (UNSEGMENTED, UNSEGMENTED_CLASS), (SPACE, SPACE_CLASS)):
        kinds[classes == of_class] = kind
    return kinds


def _symbols(alphabet: Mapping[str, int], kinds: np.ndarray) -> np.ndarray:
    numbers = np.zeros(len(kinds), np.uint32)
    numbers[[ord(char) for char in alphabet]] = list(alphabet.values())
    table = numbers << np.uint32(3) | kinds
    folded = table[fold_table()]
    folded[kinds == SPACE] = numbers[ord(" ")] << 3 | SPACE
    return folded


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
        return before == WORD or before == MARK or before == UNSEGMENTED
    return kind == WORD and (before == WORD or before == MARK)


@inner
def _child(edges, shift, state, symbol):  # type: ignore[no-untyped-def]
    key = np.uint64(state) << np.uint64(16) | np.uint64(symbol)
    slot = np.int64(key * np.uint64(0x9E3779B97F4A7C15) >> shift)
    while True:
        entry = edges[slot]
        if entry == 0:
            return np.int64(0)
        if entry >> np.uint64(24) == key:
            return np.int64(entry & np.uint64(0xFFFFFF))
        slot = (slot + 1) & (len(edges) - 1)


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
def find_terms(buf, begins, symbols, starts, edges, fails, outputs, depths, lists, asked, located, counts, spans):  # type: ignore[no-untyped-def]
    """Count the occurrences of terms by document and list, and locate those of some lists.

    asked: uint64[documents], bits of the lists that are looked for. located: uint64, bits of the lists whose spans are wanted.
    counts: int64[documents, lists], added to. spans: int64[room, 4], document, list, start, stop in bytes of the document, in order
    of stops. Returns how many spans there are, which may be more than there is room for.
    """
    num_spans = 0
    bits = 0
    while (1 << bits) < len(edges):
        bits += 1
    shift = np.uint64(64 - bits)
    for document in range(len(begins) - 1):
        begin, end = begins[document], begins[document + 1]
        if asked[document] == 0:
            continue
        pos, state, before = begin, np.int64(0), OUTSIDE
        while pos < end:
            if buf[pos] < 0x80:
                about, pos = np.int64(symbols[buf[pos]]), pos + 1
            else:
                code_point, pos = decode(buf, pos, end)
                about = np.int64(symbols[code_point])
            symbol, kind = about >> 3, about & 7
            if kind == SPACE:
                while pos < end:
                    code_point, after = decode(buf, pos, end)
                    if symbols[code_point] & 7 != SPACE:
                        break
                    pos = after
            step = np.int64(0)
            if symbol != 0:
                while state != 0:
                    step = _child(edges, shift, state, symbol)
                    if step != 0:
                        break
                    state = np.int64(fails[state])
                if state == 0 and not _joined(before, kind):
                    step = np.int64(starts[symbol])
            state, before = step, kind
            if state == 0:
                if kind == WORD:
                    # Nothing can begin before the end of this word.
                    while pos < end and buf[pos] < 0x80 and symbols[buf[pos]] & 7 == WORD:
                        pos += 1
                continue
            hit = np.int64(outputs[state])
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
                                spans[num_spans, 2], spans[num_spans, 3] = start - begin, pos - begin
                            num_spans += 1
                    found >>= np.uint64(1)
                    number += 1
                hit = np.int64(outputs[fails[hit]])
    return num_spans

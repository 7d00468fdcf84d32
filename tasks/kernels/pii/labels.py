"""Finds the word near a number that says what it is.

The words of `tasks.definitions.number_words` are a trie of their bytes from last to first. The text
before a number is walked back, and the first word that is met decides, so a label is the nearest
one. `<`, `>` and `*` end the walk. Cost: at most `MAX_LABEL_CHARS` characters a number.
"""

from __future__ import annotations

import numpy as np

from tasks.definitions import number_words
from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, ALPHA, UPPER, is_any
from tasks.kernels.pii.hash_tables import hash_table, looked_up
from tasks.kernels.text.addresses import pointers

NONE, NAME, CALL, OTHER, CARD, ADDRESS, NUMBER = range(7)
"""What the nearest word says: nothing, a telephone, perhaps one, something else, a payment card, an
address of a machine, a number of what the word before it says."""
MAX_LABEL_CHARS = 40
MAX_WORD_BYTES, MAX_AFTER_BYTES = 24, 60
"""Of a word in parentheses behind a number, and of what is read there of scripts whose verbs come
last."""

_STEP_BITS = 14
_CLASS, _AT_START, _AT_END = 7, 8, 16
_FIRST_WITHIN_WORDS = "\u0590"
"""From Hebrew and Arabic on, scripts are searched without borders of words."""


def _spellings(entry: str) -> set[str]:
    word = entry.strip("-").replace("_", " ")
    spellings = {word.lower()}
    if not word.isascii():  # ASCII letters are folded as they are read
        spellings |= {word, word.capitalize(), word.upper()}
    return spellings


def _trie() -> tuple[np.ndarray, np.ndarray]:
    """What follows a node on a byte, as an open hash table; the meaning of each node. Node 0 is the
    root."""
    following: dict[int, int] = {}
    meaning = [0]
    classes = {
        NAME: number_words.NAMES,
        CALL: number_words.CALLS,
        OTHER: number_words.OTHERS,
        CARD: number_words.CARDS,
        ADDRESS: number_words.ADDRESSES,
        NUMBER: number_words.NUMBERS,
    }
    for number, words in classes.items():
        for entry in words.split():
            bordered = entry.strip("-") < _FIRST_WITHIN_WORDS
            code = number
            code |= _AT_START if bordered and not entry.startswith("-") else 0
            code |= _AT_END if bordered and not entry.endswith("-") else 0
            for spelling in _spellings(entry):
                node = 0
                for value in reversed(spelling.encode()):
                    step = node << 8 | value
                    if step not in following:
                        following[step] = len(meaning)
                        meaning.append(0)
                    node = following[step]
                meaning[node] = meaning[node] or code
    return hash_table(following, _STEP_BITS), np.array(meaning, np.uint8)


_STEPS, _MEANING = _trie()


@inner
def label_before(v: np.ndarray, lo: int, i: int, unheard: int) -> tuple[int, int, bool]:
    """(what the nearest word before i says, characters between, whether a sentence ends between).

    At most one line ends between. unheard: bits of what does not count.
    """
    p, chars, lines, crossed, numbered = i, 0, 0, False, False
    while p > lo and chars < MAX_LABEL_CHARS:
        c = v[p - 1]
        if c == 60 or c == 62 or c == 42:
            break
        found = _word_that_ends(v, lo, p) & _CLASS
        if found == NUMBER:
            numbered = True
        elif found > 0 and not unheard >> found & 1:
            return found, chars, crossed
        if c == 10:
            lines += 1
            if lines == 2:
                break
        elif c == 46 or c == 33 or c == 63:
            crossed = crossed or (p < i and v[p] == 32 and _ends_a_sentence(v, lo, p - 1))
        elif c >= 0x80:
            crossed = crossed or _is_full_stop(v, lo, p - 1)
        chars += 1 if c & 0xC0 != 0x80 else 0
        p -= 1
    return NUMBER if numbered else NONE, chars, crossed


@inner
def label_after(v: np.ndarray, lo: int, hi: int, end: int) -> int:
    """What the next word behind a number says, in parentheses, "13912345678（手机）", or in scripts
    of languages whose verb comes last."""
    p = end
    if p < hi and (v[p] == 32 or v[p] == 41):
        p += 1
    if p >= hi:
        return NONE
    if v[p] == 40:
        p += 1
        limit = min(hi - 1, p + MAX_WORD_BYTES)
        while p < limit and is_any(v[p], ALPHA):
            p += 1
        return _word_that_ends(v, lo, p) & _CLASS
    limit = min(hi - 1, p + MAX_AFTER_BYTES)
    while p < limit and (v[p] >= 0x80 or v[p] == 32):
        if _is_full_stop(v, lo, p):
            break
        p += 1
        found = _word_that_ends(v, end, p) & _CLASS
        if found > 0:
            return found
    return NONE


@inner
def _word_that_ends(v: np.ndarray, lo: int, end: int) -> int:
    """The meaning of the longest word that ends here, or 0."""
    steps, meaning = pointers((_STEPS, _MEANING))
    found, node, p = 0, np.int64(0), end
    while p > lo:
        c = v[p - 1] | 32 if is_any(v[p - 1], UPPER) else v[p - 1]
        node = looked_up(steps, node << 8 | np.int64(c), _STEP_BITS)
        if node < 0:
            break
        p -= 1
        code = meaning[node] + 0
        if (
            code > 0
            and not (code & _AT_START and _letter_ends(v, lo, p))
            and not (code & _AT_END and _goes_on(v, end))
        ):
            found = code
    return found


@inner
def _letter_ends(v: np.ndarray, lo: int, p: int) -> bool:
    """Whether a letter of a script with borders of words ends at p."""
    if p == lo:
        return False
    c = v[p - 1]
    if c < 0x80:
        return is_any(c, ALNUM)
    return p - 2 >= lo and v[p - 2] >= 0xC3 and v[p - 2] <= 0xDF


@inner
def _goes_on(v: np.ndarray, end: int) -> bool:
    """Whether the word before `end` goes on there. A capital behind a small letter begins another:
    phoneNumber."""
    c = v[end]
    if is_any(c, UPPER) and not is_any(v[end - 1], UPPER):
        return False
    return is_any(c, ALPHA) or (c >= 0xC3 and c <= 0xDF)


@inner
def _is_full_stop(v: np.ndarray, lo: int, p: int) -> bool:
    """Whether an ideographic full stop or a danda ends with the byte at p."""
    if p - 2 < lo:
        return False
    ideographic = v[p] == 0x82 and v[p - 1] == 0x80 and v[p - 2] == 0xE3
    return ideographic or (v[p] == 0xA4 and v[p - 1] == 0xA5 and v[p - 2] == 0xE0)


@inner
def _ends_a_sentence(v: np.ndarray, lo: int, p: int) -> bool:
    """Whether four letters stand before the sign at p: shorter words are abbreviations."""
    if p - 4 < lo:
        return False
    letters = 0
    for k in range(p - 4, p):
        letters += is_any(v[k], ALPHA) or v[k] >= 0x80
    return letters == 4

"""Finds the word near a number that says what it is.

The words of `tasks.definitions.number_words` are a trie of their bytes from last to first. The text
before a number is walked back, and the first word that is met decides, so a label is the nearest
one. `<`, `>` and `*` end the walk. Cost: at most `MAX_LABEL_CHARS` characters a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tasks.definitions import number_words
from tasks.kernels import inner
from tasks.kernels.pii.bytes import ALNUM, ALPHA, DIGIT, UPPER, contains, is_any, pack, packed
from tasks.kernels.pii.hash_tables import hash_table, looked_up
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.vectors import BLOCK, Blocks

NONE, NAME, CALL, OTHER, CARD, ADDRESS, NUMBER = range(7)
"""What the nearest word says: nothing, a telephone, perhaps one, something else, a payment card, an
address of a machine, a number of what the word before it says."""
MAX_LABEL_CHARS = 40
MAX_WORD_BYTES, MAX_AFTER_BYTES = 24, 60
"""Of a word in parentheses behind a number, and of what is read there of scripts whose verbs come
last."""

_STEP_BITS = 14
_NUMBER_WORDS = packed("number numbers nr num no")
_SAY_NOTHING = packed(
    "the a an this that my your his her our their its one and or is at on in to by free best"
    " following new old same other home work office direct private personal main local emergency"
    " business daytime evening night alternate usual own called caller res resi off cont"
    " der die den meine deine seine ihre unsere eure neue alte meiner deiner"
)
"""Words before "number" that do not say of what it is."""
_CLASS, _AT_START, _AT_END = 7, 8, 16
_ENDS, _IS_DIGIT, _IS_SIGN = 1, 2, 4
"""What a byte does on the walk back: end a word, be a digit, end the walk, a line or a sentence or
be none of ASCII."""
_IDLE_RANGES = (b"+-", b"/3", b"59")
"""(first, last) of bytes that are digits at most and have no other role on the walk. 4 is missing,
since words end in it (ipv4)."""
_IDLE_BEHIND_DIGITS = b" 4"
"""Bytes that have no role behind a digit: no word ends in a digit and one of them."""
_BETWEEN_WORDS = tuple(b" _-'\"[].")
_FIRST_WITHIN_WORDS = "\u0590"
"""From Hebrew and Arabic on, scripts are searched without borders of words."""


def _spellings(entry: str) -> set[str]:
    word = entry.strip("-").replace("_", " ")
    spellings = {word.lower()}
    if not word.isascii():  # ASCII letters are folded as they are read
        spellings |= {word, word.capitalize(), word.upper()}
    return spellings


def _trie() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What follows a node on a byte, as an open hash table; the meaning of each node; what each
    byte does on the walk. Node 0 is the root."""
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
    for last in _IDLE_BEHIND_DIGITS:
        node = following.get(last, -1)
        assert not any(node << 8 | digit in following for digit in b"0123456789")
    roles = np.zeros(256, np.uint8)
    for last in range(256):
        folded = last | 32 if chr(last).isascii() and chr(last).isupper() else last
        roles[last] |= _ENDS * (folded in following)  # a step from the root is its byte
    roles[list(b"0123456789")] |= _IS_DIGIT
    roles[[*b"<>*\n.!?", *range(0x80, 256)]] |= _IS_SIGN
    return hash_table(following, _STEP_BITS), np.array(meaning, np.uint8), roles


_STEPS, _MEANING, _ROLES = _trie()
assert all(not (_ROLES[a : b + 1] & ~np.uint8(_IS_DIGIT)).any() for a, b in _IDLE_RANGES)


@intrinsic
def _digits_and_idle(typing_context: Any, buf: Any, pos: Any) -> Any:
    """Which of the 64 bytes at buf[pos] are digits, which are idle, and which are so behind digits,
    as bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        blocks = Blocks(builder, *arguments)
        here = blocks.load(0)
        idle = blocks.any_of(*(blocks.within(here, *ends) for ends in _IDLE_RANGES))
        digits = blocks.within(here, ord("0"), ord("9"))
        behind = blocks.equal(here, *_IDLE_BEHIND_DIGITS)
        found = [blocks.bits(digits), blocks.bits(idle), blocks.bits(behind)]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.uint64, 3)(buf, types.int64), generate


@intrinsic
def _leading_zeros(typing_context: Any, word: Any) -> Any:
    """How many bits above the highest one of a uint64 are zero; 64 for zero."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@inner
def label_before(v: np.ndarray, lo: int, i: int, unheard: int) -> tuple[int, int, bool]:
    """(what the nearest word before i says, characters between, whether a sentence ends between).

    At most one line ends between. unheard: bits of what does not count.
    """
    p, chars, lines, crossed, numbered_at, digits = i, 0, 0, False, -1, False
    first, numeric, idle = i - BLOCK, np.uint64(0), np.uint64(0)
    if first >= 0:
        numeric, idle, behind = _digits_and_idle(v, first)
        idle |= behind & numeric << np.uint64(1)
    while p > lo and chars < MAX_LABEL_CHARS:
        if p > first:
            # Pass the whole row of idle bytes at once.
            above = np.uint64(first + BLOCK - p)
            run = min(_leading_zeros(~(idle << above)), p - lo, p - first, MAX_LABEL_CHARS - chars)
            if run > 0:
                digits = digits or (numeric << above) >> np.uint64(BLOCK - run) != 0
                chars, p = chars + run, p - run
                continue
        c, role = v[p - 1], _ROLES[v[p - 1]]
        # Most bytes of a text of numbers do nothing.
        if role & ~_IS_DIGIT == 0:
            digits = digits or role != 0
            chars += 1
            p -= 1
            continue
        if c == 60 or c == 62 or c == 42:
            break
        # Digits and signs between numbers end no word.
        found = _word_that_ends(v, lo, p) & _CLASS if role & _ENDS else 0
        if found > 0 and p < i and _is_in_a_name(v, lo, i, p, found):
            pass
        elif found == NUMBER:
            # Behind another number it says nothing of this one.
            numbered_at = chars if numbered_at < 0 and not digits else numbered_at
            if _names_something(v, lo, p):
                return OTHER, chars, crossed
        elif found in (NAME, CALL) and p < i and is_any(v[p], UPPER):
            # phoneNumber is one of a telephone, PhoneStatusBar is not.
            if v[p] == 78 and not unheard >> found & 1:
                return found, chars, crossed
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
        digits = digits or is_any(c, DIGIT)
        chars += 1 if c & 0xC0 != 0x80 else 0
        p -= 1
    if numbered_at >= 0:
        return NUMBER, numbered_at, crossed
    return NONE, chars, crossed


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
def _names_something(v: np.ndarray, lo: int, end: int) -> bool:
    """Whether the word before the English one for a number says of what it is: trace number,
    routing_number. Only an abbreviation does so before another: Doc. No., but not Care No."""
    abbreviated = v[end - 1] == 46
    end -= abbreviated
    start = end
    while start > lo and end - start < 8 and is_any(v[start - 1], ALPHA):
        start -= 1
    if not contains(_NUMBER_WORDS, pack(v, start, end)):
        return False
    stop = start
    while stop > lo and start - stop < 5 and (v[stop - 1] in _BETWEEN_WORDS):
        stop -= 1
    first = stop
    while first > lo and stop - first < MAX_WORD_BYTES and is_any(v[first - 1], ALPHA):
        first -= 1
    if first == stop or stop == start or _word_that_ends(v, lo, stop) & _CLASS > 0:
        return False
    if abbreviated and v[stop] != 46:
        return False
    return not contains(_SAY_NOTHING, pack(v, first, stop))


@inner
def _is_in_a_name(v: np.ndarray, lo: int, i: int, end: int, found: int) -> bool:
    """Whether a word before the number at i is part of a name of code: number_fields, number.987,
    zap.c or ph_ip."""
    if v[end] == 46:
        ends = end + 2 < i and v[end + 2] < 0x80 and v[end + 2] != 46
        extension = ends and is_any(v[end + 1], ALPHA) and not is_any(v[end + 2], ALNUM)
        return extension or (found == NUMBER and end + 1 == i)
    if v[end] != 95:
        return False
    return found == NUMBER or end - 3 < lo or not (is_any(v[end - 3], ALPHA) or v[end - 3] >= 0x80)


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
    """Whether four letters stand before the sign at p: shorter words are abbreviations (Tél., тел.,
    โทร.), whatever bytes their letters take."""
    for _ in range(4):
        p -= 1
        while p > lo and v[p] & 0xC0 == 0x80:
            p -= 1
        if p < lo or not (is_any(v[p], ALPHA) or v[p] >= 0x80):
            return False
    return True

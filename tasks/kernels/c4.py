"""What C4 asks of a line (Raffel et al. 2020, section 2.2): phrases that mark boilerplate, and sentences.

A line survives with 3 words or more (the paper's number; the published code has 5), none over 1000 characters, an end
in . ? ! or " but not `...`, and neither `javascript` nor one of six policy phrases. Sentences are a proxy: runs of . ? ! with
closing quotes and brackets, before white space or the end, where C4 ran a trained sentence splitter.
Left out: citation marks, the bad-word list, langdetect, repeated three-sentence spans.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from tasks.kernels.chars import SPACE, decode
from tasks.kernels.lines import ends_in_dots

LONG_WORD_CHARS = 1000
LEAST_LINE_WORDS = 3
BOILERPLATE = ("javascript", "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
PHRASES = (*BOILERPLATE, "lorem ipsum")
# Byte values as numbers: `ord` inside a kernel would compile all of Numba's string support.
_DOT, _QUESTION, _EXCLAMATION, _QUOTE, _APOSTROPHE, _ROUND, _SQUARE = b".?!\"')]"
_A, _Z = b"AZ"
_BOILERPLATE_BITS = (1 << len(BOILERPLATE)) - 1
LOREM_IPSUM_BIT = 1 << len(BOILERPLATE)


@lru_cache(maxsize=1)
def phrase_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PHRASES as bytes with offsets; [0, b] and [1, b]: bits of the phrases whose first, second byte is b in either case."""
    data = np.frombuffer("".join(PHRASES).encode(), np.uint8)
    offsets = np.cumsum([0, *map(len, PHRASES)]).astype(np.int64)
    heads = np.zeros((2, 256), np.int64)
    for i, phrase in enumerate(PHRASES):
        for place in (0, 1):
            for char in (phrase[place], phrase[place].upper()):
                heads[place, ord(char)] |= 1 << i
    return data, offsets, heads


@njit(cache=True, nogil=True)
def find_phrases(buf, start, stop, phrases):  # type: ignore[no-untyped-def]
    """Bits of the phrases in buf[start:stop], ASCII case ignored."""
    data, offsets, heads = phrases
    found = np.int64(0)
    for pos in range(start, stop - 1):
        candidates = heads[0, buf[pos]] & heads[1, buf[pos + 1]] & ~found
        phrase = 0
        while candidates:
            if candidates & 1:
                begin, length = offsets[phrase], offsets[phrase + 1] - offsets[phrase]
                same = pos + length <= stop
                i = 2
                while same and i < length:
                    byte = np.int64(buf[pos + i])
                    if byte >= _A and byte <= _Z:
                        byte |= 0x20
                    same = byte == data[begin + i]
                    i += 1
                if same:
                    found |= np.int64(1) << phrase
            candidates >>= 1
            phrase += 1
    return found


@njit(cache=True, nogil=True)
def count_sentences(buf, start, stop, classes):  # type: ignore[no-untyped-def]
    """Ends of sentences in a line, as the module docstring defines them."""
    count = 0
    pos = start
    while pos < stop:
        if not _ends_sentence(buf[pos]):
            pos += 1
            continue
        while pos < stop and (_ends_sentence(buf[pos]) or _closes(buf[pos])):
            pos += 1
        if pos == stop or classes[decode(buf, pos, stop)[0]] == SPACE:
            count += 1
    return count


@njit(cache=True, nogil=True)
def survives(buf, start, stop, num_words, longest_word_chars, found):  # type: ignore[no-untyped-def]
    """Whether C4 would keep this trimmed line, given its words and the phrases found in it."""
    if num_words < LEAST_LINE_WORDS or longest_word_chars > LONG_WORD_CHARS or found & _BOILERPLATE_BITS:
        return False
    last = buf[stop - 1]
    return (_ends_sentence(last) or last == _QUOTE) and not ends_in_dots(buf, start, stop)


@njit(cache=True, nogil=True)
def _ends_sentence(byte):  # type: ignore[no-untyped-def]
    return byte in (_DOT, _QUESTION, _EXCLAMATION)


@njit(cache=True, nogil=True)
def _closes(byte):  # type: ignore[no-untyped-def]
    return byte in (_QUOTE, _APOSTROPHE, _ROUND, _SQUARE)

"""Judges lines and pages as C4 does (Raffel et al. 2020, section 2.2), in three published readings.

A line survives with enough words, no word over 1000 characters, an end in . ? ! or " but not `...`,
and neither `javascript` nor one of six policy phrases; citation marks (`[12]`, `[edit]`, `[citation
needed]`) are taken out first. A page needs sentences enough in the surviving lines, and neither
`lorem ipsum` nor a curly brace.

paper     3 words a line, 5 sentences a page; a brace or lorem ipsum anywhere (the paper does not
          say where it looked).
code      5 words, 3 sentences (tensorflow_datasets, c4_utils.py); braces and lorem ipsum only in
          lines that came so far: a page keeps its braces where their lines are dropped anyway.
fineweb   the paper's numbers without the rule on ends of lines (DataTrove's
          filter_no_terminal_punct=False, as FineWeb ran it); braces and lorem ipsum looked for as
          in code.

Words are what white space parts, as in the codes; the longest is measured before citations go. Case
is ignored in ASCII. Sentences are a proxy, where C4 ran a trained splitter: a run of . ? ! with
closing quotes and brackets before white space parts two, and what is left at the end of a line is
one too. Left out: bad words, langdetect, repeated three-sentence spans.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from tasks.definitions.c4_kinds import (
    CITATION_MARKS,
    LONG_WORD_CHARS,
    MAX_CITATION_DIGITS,
    POLICY_PHRASES,
    READINGS,
    REASONS,
    SCRIPT_PHRASE,
)
from tasks.kernels import inner
from tasks.kernels.text.addresses import pointers
from tasks.kernels.text.bitmaps import IS_SPACE
from tasks.kernels.text.chars import decode

BOILERPLATE = (SCRIPT_PHRASE, *POLICY_PHRASES)
PHRASES = (*BOILERPLATE, "lorem ipsum")
PAPER, CODE, FINEWEB = (
    3 * list(READINGS).index(f"c4_{name}") for name in ("paper", "code", "fineweb")
)
KEPT_LINES, SENTENCES, FORBIDDEN_LINES, LOREM_IPSUM_LINES, MEASURES = 0, 1, 2, 9, 10
"""Places in `totals`: those of a reading and a measure are added, lorem ipsum is one for all."""

_READINGS = tuple(READINGS.values())
_STAYS, _LONG_WORD, _NO_END_MARK, _TOO_FEW_WORDS, _JAVASCRIPT, _POLICY = range(len(REASONS) + 1)

_BOILERPLATE_BITS = (1 << len(BOILERPLATE)) - 1
_JAVASCRIPT_BIT, _LOREM_IPSUM_BIT = 1, 1 << len(BOILERPLATE)
# Byte values as numbers: `ord` inside a kernel would compile all of Numba's string support.
_A, _Z, _DOT, _QUOTE, _OPEN, _CLOSE, _ZERO, _NINE, _NEWLINE = b'AZ."[]09\n'
# What a byte can mean, most of them nothing.
_NOTHING, _BLANK, _WIDE, _END, _CLOSING, _BRACE, _J = range(7)
_MARK_BYTES, _ALL_MARKS_BYTES = len(CITATION_MARKS[0]), len("".join(CITATION_MARKS))


@lru_cache(maxsize=1)
def c4_tables() -> tuple[np.ndarray, ...]:
    """(kinds, phrases, offsets, spaces, heads, citations).

    kinds: what each byte can mean. phrases: PHRASES as bytes with offsets, the place of the first
    space in each (or 0), and heads: at b and 256 + b the bits of the phrases whose byte before and
    after that space is b in either case.
    """
    kinds = np.zeros(256, np.uint8)
    kinds[[0xC2, 0xE1, 0xE2, 0xE3]] = _WIDE  # lead bytes of all white space beyond ASCII
    for chars, kind in (
        (" \t\x0b\x0c\r\x1c\x1d\x1e\x1f", _BLANK),
        (".?!", _END),
        ("\"')]", _CLOSING),
    ):
        kinds[[ord(char) for char in chars]] = kind
    kinds[ord("{")], kinds[[ord("j"), ord("J")]] = _BRACE, _J
    phrases = np.frombuffer("".join(PHRASES).encode(), np.uint8)
    offsets = np.cumsum([0, *map(len, PHRASES)]).astype(np.int64)
    spaces = np.array([max(phrase.find(" "), 0) for phrase in PHRASES], np.int64)
    heads = np.zeros(512, np.int64)
    for i, phrase in enumerate(PHRASES):
        if spaces[i]:
            for row, char in ((0, phrase[spaces[i] - 1]), (256, phrase[spaces[i] + 1])):
                heads[[row + ord(char), row + ord(char.upper())]] |= 1 << i
    citations = np.frombuffer("".join(CITATION_MARKS).encode(), np.uint8)
    return kinds, phrases, offsets, spaces, heads, citations


@inner
def ends_in_dots(buf, start, stop):  # type: ignore[no-untyped-def]
    """Whether a span ends in `...`."""
    if stop - start < 3:
        return False
    return buf[stop - 1] == _DOT and buf[stop - 2] == _DOT and buf[stop - 3] == _DOT


@inner
def _fault(reading, words, clean_words, longest, found, ends_well):  # type: ignore[no-untyped-def]
    """1 + the place in REASONS of the first one for which a line goes, 0 where it stays."""
    min_words, needs_end_mark = reading
    if longest > LONG_WORD_CHARS:
        return _LONG_WORD
    if needs_end_mark and not ends_well:
        return _NO_END_MARK
    if (clean_words if needs_end_mark else words) < min_words:
        return _TOO_FEW_WORDS
    if found & _JAVASCRIPT_BIT:
        return _JAVASCRIPT
    return _POLICY if found & _BOILERPLATE_BITS else _STAYS


@inner
def judge_line(words, clean_words, longest, sentences, found, brace, ends_well, copies, totals):  # type: ignore[no-untyped-def]
    """Add the copies of a line to `totals` (MEASURES numbers).

    words, longest: with the citations. clean_words, sentences, found (bits of PHRASES), brace,
    ends_well: without them.
    """
    lorem = found & _LOREM_IPSUM_BIT != 0
    totals[LOREM_IPSUM_LINES] += copies * lorem
    # Lorem ipsum is looked for before javascript, braces after it.
    forbidden = lorem or (brace and not found & _JAVASCRIPT_BIT)
    for i in range(len(_READINGS)):
        fault = _fault(_READINGS[i], words, clean_words, longest, found, ends_well)
        stays = fault == _STAYS
        totals[3 * i + KEPT_LINES] += copies * stays
        totals[3 * i + SENTENCES] += copies * sentences * stays
        totals[3 * i + FORBIDDEN_LINES] += copies * (forbidden and (stays or fault >= _JAVASCRIPT))


@njit(cache=True, nogil=True)
def find_faulty_lines(texts, begins, mine, reading, flags, tables, stripped, cuts, counts):  # type: ignore[no-untyped-def]
    """Find the lines that go from each document that is `mine`, with the blank lines after them.

    reading: a value of READINGS. cuts: int64[lines, 3], start, end in bytes of the document and
    place in REASONS. counts: int64[documents], cuts of each. Returns how many cuts there are.
    """
    num_cuts = 0
    buf, flags, tables, stripped = pointers((texts, flags, tables, stripped))
    for document in range(len(begins) - 1):
        begin, end = np.int64(begins[document]), np.int64(begins[document + 1])
        before, is_open = num_cuts, False
        start = begin if mine[document] else end
        while start < end:
            line_end = start
            while line_end < end and buf[line_end] != _NEWLINE:
                line_end += 1
            first, last, words, longest = _walk_words(buf, start, line_end, flags)
            if words:
                if is_open:
                    cuts[num_cuts - 1, 1] = start - begin
                clean_words, _, found, _, ends_well = read_clean_line(
                    buf, first, last, flags, tables, stripped
                )
                fault = _fault(reading, words, clean_words, longest, found, ends_well)
                is_open = fault != _STAYS
                if is_open:
                    cuts[num_cuts, 0], cuts[num_cuts, 1] = start - begin, end - begin
                    cuts[num_cuts, 2] = fault - 1
                    num_cuts += 1
            start = line_end + 1
        counts[document] = num_cuts - before
    return num_cuts


@inner
def _walk_words(buf, start, stop, flags):  # type: ignore[no-untyped-def]
    """(first byte, behind the last, words, characters of the longest) of what is not white
    space."""
    first, last, words, longest, chars = stop, stop, 0, 0, 0
    pos = start
    while pos < stop:
        char, after = decode(buf, pos, stop)
        if flags[char] & IS_SPACE:
            chars = 0
        else:
            first = pos if words == 0 else first
            last = after
            words += chars == 0
            chars += 1
            longest = chars if chars > longest else longest
        pos = after
    return first, last, words, longest


@inner
def read_clean_line(buf, start, stop, flags, tables, stripped):  # type: ignore[no-untyped-def]
    """(words, sentences, bits of phrases found, has a curly brace, ends well) of a line whose
    citations are taken out."""
    length = _strip_citations(buf, start, stop, tables[5], stripped)
    words, sentences, found, brace = _measure_clean_line(stripped, length, flags, tables)
    last = stripped[length - 1] if length else np.uint8(0)
    ends_well = (tables[0][last] == _END or last == _QUOTE) and not ends_in_dots(
        stripped, np.int64(0), length
    )
    return words, sentences, found, brace, ends_well


@inner
def _measure_clean_line(buf, stop, flags, tables):  # type: ignore[no-untyped-def]
    """(words, sentences, bits of phrases found, has a curly brace) of buf[:stop], by the rules of
    tasks.kernels.quality.lines."""
    kinds, heads = tables[0], tables[4]
    words, sentences, found, brace = 0, 0, 0, False
    word_start, content_stop, ended_at = np.int64(0), np.int64(0), np.int64(-1)
    pos = np.int64(0)
    while pos < stop:
        kind, after = kinds[buf[pos]], pos + 1
        if kind == _WIDE:
            char, wide_after = decode(buf, pos, stop)
            if flags[char] & IS_SPACE:
                kind, after = _BLANK, wide_after
        if kind == _BLANK:
            if pos > word_start:
                words += 1
                content_stop = pos
                sentences += ended_at == pos
            if pos > 0 and pos + 1 < stop:
                candidates = heads[buf[pos - 1]] & heads[256 + buf[pos + 1]]
                found |= _phrases_at(buf, stop, pos, candidates, tables)
            word_start = after
        elif kind == _END:
            ended_at = after
        elif kind == _CLOSING:
            if ended_at == pos:
                ended_at = after
        elif kind == _BRACE:
            brace = True
        elif kind == _J and _matches(buf, pos, stop, tables, np.int64(0)):
            found |= _JAVASCRIPT_BIT
        pos = after
    words += stop > word_start
    # What follows the last end of a sentence is one more; an end before white space was counted
    # there.
    sentences += stop > word_start or (words > 0 and ended_at != content_stop)
    return words, sentences, found, brace


@inner
def _phrases_at(buf, stop, space, candidates, tables):  # type: ignore[no-untyped-def]
    """Bits of those candidates that stand around their first space, at `space`."""
    spaces = tables[3]
    found = np.int64(0)
    phrase = np.int64(0)
    while candidates:
        start = space - spaces[phrase]
        if candidates & 1 and start >= 0 and _matches(buf, start, stop, tables, phrase):
            found |= np.int64(1) << phrase
        candidates >>= 1
        phrase += 1
    return found


@inner
def _matches(buf, pos, stop, tables, phrase):  # type: ignore[no-untyped-def]
    data, offsets = tables[1], tables[2]
    begin, length = offsets[phrase], offsets[phrase + 1] - offsets[phrase]
    if pos + length > stop:
        return False
    for i in range(length):
        byte = np.int64(buf[pos + i])
        if byte >= _A and byte <= _Z:
            byte |= 0x20
        if byte != data[begin + i]:
            return False
    return True


@inner
def _strip_citations(buf, start, stop, citations, stripped):  # type: ignore[no-untyped-def]
    """Copy buf[start:stop] without its citation marks; returns the length of the copy."""
    length = 0
    pos = start
    while pos < stop:
        if buf[pos] == _OPEN:
            after = _citation_end(buf, pos, stop, citations)
            if after:
                pos = after
                continue
        stripped[length] = buf[pos]
        length += 1
        pos += 1
    return length


@inner
def _citation_end(buf, pos, stop, citations):  # type: ignore[no-untyped-def]
    """Where the citation mark at `pos` ends, or 0 where there is none."""
    after, most = pos + 1, pos + MAX_CITATION_DIGITS
    while after < stop and after <= most and buf[after] >= _ZERO and buf[after] <= _NINE:
        after += 1
    if after < stop and buf[after] == _CLOSE:
        return after + 1
    for first, last in ((0, _MARK_BYTES), (_MARK_BYTES, _ALL_MARKS_BYTES)):
        if pos + last - first <= stop:
            same = True
            for i in range(first, last):
                same = same and buf[pos + i - first] == citations[i]
            if same:
                return pos + last - first
    return 0

"""Applies C4's rules to lines and pages (Raffel et al. 2020, section 2.2), in three published
readings.

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

from tasks.definitions.c4_kinds import (
    CITATION_MARKS,
    LONG_WORD_CHARS,
    MAX_CITATION_DIGITS,
    MIN_LINE_WORDS,
    POLICY_PHRASES,
    SCRIPT_PHRASE,
)
from tasks.kernels import inner
from tasks.kernels.text.bitmaps import IS_SPACE
from tasks.kernels.text.chars import decode

PAPER_LINE_WORDS, CODE_LINE_WORDS, FINEWEB_LINE_WORDS = (
    MIN_LINE_WORDS[name] for name in ("c4_paper", "c4_code", "c4_fineweb")
)
BOILERPLATE = (SCRIPT_PHRASE, *POLICY_PHRASES)
PHRASES = (*BOILERPLATE, "lorem ipsum")
MEASURES = 9
"""Numbers in `totals`: paper kept lines, sentences; code and fineweb kept lines, sentences,
forbidden lines; lorem ipsum."""

_BOILERPLATE_BITS = (1 << len(BOILERPLATE)) - 1
_JAVASCRIPT_BIT, _LOREM_IPSUM_BIT = 1, 1 << len(BOILERPLATE)
# Byte values as numbers: `ord` inside a kernel would compile all of Numba's string support.
_A, _Z, _DOT, _QUOTE, _OPEN, _CLOSE, _ZERO, _NINE = b'AZ."[]09'
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
    return (
        kinds,
        phrases,
        offsets,
        spaces,
        heads,
        np.frombuffer("".join(CITATION_MARKS).encode(), np.uint8),
    )


@inner
def ends_in_dots(buf, start, stop):  # type: ignore[no-untyped-def]
    """Whether a span ends in `...`."""
    return (
        stop - start >= 3
        and buf[stop - 1] == _DOT
        and buf[stop - 2] == _DOT
        and buf[stop - 3] == _DOT
    )


@inner
def judge_line(words, clean_words, longest, sentences, found, brace, ends_well, copies, totals):  # type: ignore[no-untyped-def]
    """Add the copies of a line to `totals` (MEASURES numbers).

    words, longest: with the citations. clean_words, sentences, found (bits of PHRASES), brace,
    ends_well: without them.
    """
    lorem = found & _LOREM_IPSUM_BIT != 0
    totals[8] += copies * lorem
    if longest > LONG_WORD_CHARS:
        return
    boilerplate = found & _BOILERPLATE_BITS != 0
    # Lorem ipsum is looked for before javascript, braces after it.
    forbidden = lorem or (brace and not found & _JAVASCRIPT_BIT)
    paper = ends_well & (clean_words >= PAPER_LINE_WORDS)
    code = ends_well & (clean_words >= CODE_LINE_WORDS)
    fineweb = words >= FINEWEB_LINE_WORDS
    totals[4] += copies * (code & forbidden)
    totals[7] += copies * (fineweb & forbidden)
    if not boilerplate:
        totals[0] += copies * paper
        totals[1] += copies * sentences * paper
        totals[2] += copies * code
        totals[3] += copies * sentences * code
        totals[5] += copies * fineweb
        totals[6] += copies * sentences * fineweb


@inner
def judge_odd_line(buf, start, stop, words, longest, copies, flags, tables, stripped, totals):  # type: ignore[no-untyped-def]
    """The same for a line with what is not counted by bits: its citations are taken out, and what
    is left is read."""
    length = _strip_citations(buf, start, stop, tables[5], stripped)
    clean_words, sentences, found, brace = _measure_clean_line(stripped, length, flags, tables)
    last = stripped[length - 1] if length else np.uint8(0)
    ends_well = (tables[0][last] == _END or last == _QUOTE) and not ends_in_dots(
        stripped, np.int64(0), length
    )
    judge_line(words, clean_words, longest, sentences, found, brace, ends_well, copies, totals)


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
                found |= phrases_at(
                    buf,
                    np.int64(0),
                    stop,
                    pos,
                    heads[buf[pos - 1]] & heads[256 + buf[pos + 1]],
                    tables,
                )
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
def phrases_at(buf, start, stop, space, candidates, tables):  # type: ignore[no-untyped-def]
    """Bits of those candidates that stand around their first space, at `space`."""
    spaces = tables[3]
    found = np.int64(0)
    phrase = np.int64(0)
    while candidates:
        if (
            candidates & 1
            and space - spaces[phrase] >= start
            and _matches(buf, space - spaces[phrase], stop, tables, phrase)
        ):
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
    after = pos + 1
    while (
        after < stop
        and after <= pos + MAX_CITATION_DIGITS
        and buf[after] >= _ZERO
        and buf[after] <= _NINE
    ):
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

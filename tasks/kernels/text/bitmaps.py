"""Marks units, white space and ends of sentences of a document: one bit a byte, 64 bytes at a time.

ASCII is compared 64 bytes at once, without a branch; only other characters are decoded, one by one,
and looked up in a table of flags by code point. What ends where follows from shifted masks (as
simdjson finds strings: Langdale, Lemire 2019). A unit is what tasks.kernels.text.chars says.
Offsets in bitmaps count from the beginning of the document.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tasks.kernels import inlined, inner
from tasks.kernels.text.chars import (
    APOSTROPHE,
    LETTER,
    MARK,
    SPACE,
    UNSEGMENTED,
    char_classes,
    decode,
)
from tasks.kernels.text.vectors import Blocks

IN_UNIT, IS_LETTER, IS_UNSEGMENTED, IS_MARK, IS_SPACE, IS_APOSTROPHE = 1, 2, 4, 8, 16, 32
PADDING = 72
"""Bytes that may be read behind a document."""

LETTERS, SPACES, NEWLINES, STARTS, SENTENCE_ENDS, TAILS, ODD = range(7)
NUM_MAPS = 7
"""Bitmaps of a document, one word of each after another: letters (first bytes), white space (all
bytes), newlines, what is not white space after white space, white space after the end of a
sentence, bytes that begin no character, and `[`, `{` or what may be one of
tasks.kernels.quality.c4.PHRASES."""

RARE_LETTERS = ("kie", "icy", "psu", "jav", "f u")
"""Three letters in a row of each of tasks.kernels.quality.c4.PHRASES, that other words have
seldom."""

_ELLIPSIS = ord("…")
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_TOP = np.uint64(63)


@lru_cache(maxsize=1)
def char_flags() -> np.ndarray:
    """What is asked of a code point, uint8[0x110000]: IN_UNIT and the others above."""
    classes = char_classes()
    flags = np.where(classes >= MARK, IN_UNIT, 0)
    for kind, flag in (
        (LETTER, IS_LETTER),
        (UNSEGMENTED, IS_UNSEGMENTED),
        (MARK, IS_MARK),
        (SPACE, IS_SPACE),
        (APOSTROPHE, IS_APOSTROPHE),
    ):
        flags |= np.where(classes == kind, flag, 0)
    table = flags.astype(np.uint8)
    table.setflags(write=False)
    return table


@intrinsic
def count_ones(typing_context: Any, word: Any) -> Any:
    """How many bits of a number are 1."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """How many of the lowest bits of a number are 0; 64 where all are."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def _masks(typing_context: Any, buf: Any, pos: Any) -> Any:
    """Which of the 64 bytes at buf[pos] are (beyond ASCII, in a character but not its first,
    letters, in units, white space, newlines, apostrophes, ends of sentences, what may close after
    them, ODD, dots, `#`, `{`, the first of a Han letter, the first of a common letter of two
    bytes), each as the bits of one number: the first seven, and the others.

    buf: where bytes lie (tasks.kernels.text.addresses.pointers). Reads 66 of them; nothing is
    checked.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        blocks = Blocks(builder, *arguments)
        within, any_of = blocks.within, blocks.any_of

        def equal(block, sign):  # type: ignore[no-untyped-def]
            return blocks.equal(block, ord(sign))

        here, following = blocks.load(0), blocks.load(1)
        lower = [builder.or_(blocks.load(ahead), blocks.all_of(0x20)) for ahead in range(3)]
        phrases = []
        for rare in RARE_LETTERS:
            first, second, third = map(equal, lower, rare)
            phrases.append(builder.and_(builder.and_(first, second), third))
        # UTF-8 of U+4E00 to U+9FFF, and of U+00C0 to U+00FF without × and ÷ and U+0400 to U+047F.
        first_han = builder.and_(equal(here, "\xe4"), within(following, 0xB8, 0xFF))
        no_letter = any_of(equal(following, "\x97"), equal(following, "\xb7"))
        latin = builder.and_(equal(here, "\xc3"), builder.not_(no_letter))
        letters = within(lower[0], ord("a"), ord("z"))
        dots, braces, apostrophes = equal(here, "."), equal(here, "{"), equal(here, "'")
        found = (
            blocks.below(here, 0),
            blocks.below(here, 0xC0),
            letters,
            any_of(letters, within(here, ord("0"), ord("9")), equal(here, "_")),
            any_of(equal(here, " "), within(here, 0x09, 0x0D), within(here, 0x1C, 0x1F)),
            equal(here, "\n"),
            apostrophes,
            any_of(dots, equal(here, "?"), equal(here, "!")),
            any_of(apostrophes, equal(here, '"'), equal(here, ")"), equal(here, "]")),
            any_of(braces, equal(here, "["), *phrases),
            dots,
            equal(here, "#"),
            braces,
            any_of(within(here, 0xE5, 0xE9), first_han),
            any_of(latin, within(here, 0xD0, 0xD1)),
        )
        words = [blocks.bits(mask) for mask in found]
        halves = zip(signature.return_type, (words[:7], words[7:]), strict=True)
        parts = [context.make_tuple(builder, kind, half) for kind, half in halves]
        return context.make_tuple(builder, signature.return_type, parts)

    masks = types.UniTuple(types.uint64, 7), types.UniTuple(types.uint64, 8)
    return types.Tuple(masks)(buf, types.int64), generate


@inlined
def bits_from(maps, kind, offset):  # type: ignore[no-untyped-def]
    """The 64 bits of a bitmap from an offset on."""
    word, shift = offset >> 6, np.uint64(offset & 63)
    low, high = maps[NUM_MAPS * word + kind], maps[NUM_MAPS * (word + 1) + kind]
    return (low >> shift) | ((high << _ONE) << (_TOP - shift))


@inner
def class_at(buf, pos, end, table):  # type: ignore[no-untyped-def]
    """What a table by code point says of the character at `pos`; not inlined, as it is asked seldom
    and compiled often."""
    return table[decode(buf, pos, end)[0]]


@inner
def map_document(buf, begin, end, flags, maps, unit_starts, unit_stops):  # type: ignore[no-untyped-def]
    """Fill the bitmaps of buf[begin:end], and where its units start and stop.

    maps: room for two words of each bitmap more than the document has. Reads up to PADDING bytes
    behind the document. Returns (units, bytes that begin no character, newlines, `#`, ellipses,
    curly braces that open).
    """
    num_starts, num_stops, num_tails, num_newlines, hashes, ellipses, braces = 0, 0, 0, 0, 0, 0, 0
    # The last bit of each mask, where the next block starts from.
    unit_before, single_before, end_before = _ZERO, _ZERO, _ZERO
    space_before = _ONE
    # What is left of a character that began in the block before.
    char_rest, unit_rest, single_rest, space_rest = _ZERO, _ZERO, _ZERO, _ZERO
    dot_before, two_dots_before, last_ellipsis = _ZERO, _ZERO, begin - 3
    word, pos = 0, begin
    while pos < end:
        of_words, others = _masks(buf, pos)
        wide, tails, letters, units, spaces, newlines, apostrophes = of_words
        ends, closers, odd, dots, signs, opening, han, common = others
        # What lies behind the document is read, and masked out.
        inside = ~_ZERO if end - pos >= 64 else (_ONE << np.uint64(end - pos)) - _ONE
        wide, tails, letters = wide & inside, tails & inside, letters & inside
        units, spaces, newlines = units & inside, spaces & inside, newlines & inside
        apostrophes, ends, closers = apostrophes & inside, ends & inside, closers & inside
        odd &= inside
        dots, signs, opening = dots & inside, signs & inside, opening & inside
        # Bytes of units that are one letter without spaces and its marks; the first bytes of such
        # letters.
        singles, heads = single_rest, _ZERO
        units |= unit_rest
        spaces |= space_rest
        leads = wide & ~tails & ~char_rest
        # What most characters beyond ASCII are is told like ASCII, where they are whole.
        han &= leads & (tails >> _ONE) & (tails >> _TWO)
        common &= leads & (tails >> _ONE)
        heads |= han
        letters |= common
        whole_han, whole_common = han | (han << _ONE) | (han << _TWO), common | (common << _ONE)
        singles |= whole_han
        units |= whole_han | whole_common
        leads &= ~(han | common)
        char_rest, unit_rest, single_rest, space_rest = _ZERO, _ZERO, _ZERO, _ZERO
        while leads:
            at = trailing_zeros(leads)
            char, after = decode(buf, pos + at, end)
            flag = flags[char]
            place = np.uint64(at)
            width = (_ONE << np.uint64(after - pos - at)) - _ONE
            here, rest = width << place, (width >> _ONE) >> (_TOP - place)
            leads &= ~here
            char_rest = rest
            single_left = (((singles << _ONE) | single_before) >> place) & _ONE
            if flag & IN_UNIT:
                units |= here
                unit_rest |= rest
                letters |= np.uint64(flag & IS_LETTER != 0) << place
                if flag & IS_UNSEGMENTED:
                    heads |= _ONE << place
                    singles |= here
                    single_rest |= rest
                elif flag & IS_MARK and single_left:
                    singles |= here
                    single_rest |= rest
            elif flag & IS_SPACE:
                spaces |= here
                space_rest |= rest
            elif flag & IS_APOSTROPHE:
                unit_left = (((units << _ONE) | unit_before) >> place) & _ONE
                in_word = unit_left and not single_left and after < end
                if in_word and class_at(buf, after, end, flags) & IS_LETTER:
                    units |= here
                    unit_rest |= rest
            else:
                ellipses += char == _ELLIPSIS
        # Apostrophes of ASCII: one that ends this block needs the first character of the next.
        letter_after = letters >> _ONE
        if (
            apostrophes >> _TOP
            and pos + 64 < end
            and class_at(buf, pos + 64, end, flags) & IS_LETTER
        ):
            letter_after |= _ONE << _TOP
        single_left = (singles << _ONE) | single_before
        units |= apostrophes & ((units << _ONE) | unit_before) & ~single_left & letter_after
        unit_left = (units << _ONE) | unit_before
        starts = (units & ~singles & (~unit_left | single_left)) | heads
        stops = unit_left & (~units | starts)
        unit_before, single_before = units >> _TOP, singles >> _TOP
        while starts:
            unit_starts[num_starts] = pos + trailing_zeros(starts)
            num_starts += 1
            starts &= starts - _ONE
        while stops:
            unit_stops[num_stops] = pos + trailing_zeros(stops)
            num_stops += 1
            stops &= stops - _ONE

        # Closing marks right after an end belong to it: a sum carries through those that do, and
        # leaves the others as they are.
        ends |= closers & ~(closers + (closers & ((ends << _ONE) | end_before)))
        base = NUM_MAPS * word
        maps[base + LETTERS] = letters
        maps[base + SPACES] = spaces
        maps[base + NEWLINES] = newlines
        maps[base + STARTS] = inside & ~spaces & ((spaces << _ONE) | space_before)
        maps[base + SENTENCE_ENDS] = spaces & ((ends << _ONE) | end_before)
        maps[base + TAILS] = tails
        maps[base + ODD] = odd
        end_before, space_before = ends >> _TOP, spaces >> _TOP

        num_tails += count_ones(tails)
        num_newlines += count_ones(newlines)
        hashes += count_ones(signs)
        braces += count_ones(opening)
        second = dots & ((dots << _ONE) | dot_before)
        third = second & ((second << _ONE) | two_dots_before)
        dot_before, two_dots_before = dots >> _TOP, second >> _TOP
        while third:
            at = pos + trailing_zeros(third)
            third &= third - _ONE
            if at >= last_ellipsis + 3:
                ellipses += 1
                last_ellipsis = at
        word += 1
        pos += 64
    if num_stops < num_starts:
        unit_stops[num_stops] = end
    for i in range(NUM_MAPS):
        maps[NUM_MAPS * word + i] = _ZERO
        maps[NUM_MAPS * (word + 1) + i] = _ZERO
    return num_starts, num_tails, num_newlines, hashes, ellipses, braces

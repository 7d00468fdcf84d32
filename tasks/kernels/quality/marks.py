"""Counts digits, punctuation, symbols and damaged characters, 64 bytes at a time.

ASCII is told by vector comparison, and so are characters beyond it whose first byte begins letters
alone; only the others are decoded and looked up.

A run of one mark or symbol, such as an underline or the frame of a table, is one. Damaged are
replacement characters (U+FFFD), control characters of Latin-1 (U+0080 to U+009F), and UTF-8 read as
Latin-1 or Windows-1252: `Ã`, `Â`, `Ð` and `Ñ` before U+00A1 to U+00BF other than angle quotes, and
`â` before `€`; both characters count.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from tasks.kernels import inner
from tasks.kernels.text.bitmaps import count_ones, trailing_zeros
from tasks.kernels.text.chars import decode
from tasks.kernels.text.vectors import Blocks

PUNCTUATION, SYMBOL, SENTENCE_END, CONTROL, BLANK = 1, 2, 4, 8, 16
WIDE_ENDS = "‼⁇⁈⁉。．｡！？؟۔।॥։።፧፨᠃᠉၊།༎᙮៕"
"""Marks beyond ASCII that end a sentence, whatever follows them."""

_ONE, _ALL = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
_LETTER_LEADS = ((0xC3, 0xCA), (0xCC, 0xCC), (0xD0, 0xD1), (0xD3, 0xD4), (0xE5, 0xE9), (0xEB, 0xEE))
"""First bytes of UTF-8 whose characters are letters and marks alone, but for × and ÷."""


@lru_cache(maxsize=1)
def mark_kinds() -> np.ndarray:
    """What a code point is, uint8[0x110000]: PUNCTUATION and the others above."""
    table = np.zeros(0x110000, np.uint8)
    for code in range(0x20000):
        category = unicodedata.category(chr(code))
        table[code] = {"P": PUNCTUATION, "S": SYMBOL}.get(category[0], 0)
        table[code] |= BLANK if chr(code).isspace() else 0
    table[0x80:0xA0] |= CONTROL
    table[0xFFFD] |= CONTROL
    table[[ord(char) for char in WIDE_ENDS]] |= SENTENCE_END
    table.setflags(write=False)
    return table


@intrinsic
def _kinds_of_block(typing_context: Any, buf: Any, pos: Any) -> Any:
    """Which of the 64 bytes at buf[pos] are (digits, punctuation, symbols, white space, first bytes
    of characters to look up, followed by the same byte), each as the bits of one number."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        blocks = Blocks(builder, *arguments)
        here, following = blocks.load(0), blocks.load(1)
        within, any_of, equal = blocks.within, blocks.any_of, blocks.equal

        digits = within(here, 0x30, 0x39)
        letters = within(builder.or_(here, blocks.all_of(0x20)), 0x61, 0x7A)
        symbols = any_of(equal(here, *b"$+^`|~"), within(here, ord("<"), ord(">")))
        spaces = any_of(equal(here, 0x20), within(here, 0x09, 0x0D), within(here, 0x1C, 0x1F))
        known = any_of(digits, letters, symbols)
        punctuation = builder.and_(within(here, 0x21, 0x7E), builder.not_(known))
        of_letters = any_of(*(within(here, *leads) for leads in _LETTER_LEADS))
        signs = builder.and_(equal(here, 0xC3), equal(following, 0x97, 0xB7))  # × and ÷
        odd = builder.and_(within(here, 0xC2, 0xF4), builder.not_(of_letters))
        odd = builder.or_(odd, signs)
        found = digits, punctuation, symbols, spaces, odd, blocks.same(here, following)
        words = [blocks.bits(mask) for mask in found]
        return context.make_tuple(builder, signature.return_type, words)

    return types.UniTuple(types.uint64, 6)(buf, types.int64), generate


@inner
def count_marks(buf, begin, end, num_chars, table):  # type: ignore[no-untyped-def]
    """(digits, punctuation, symbols, characters that are neither white space nor the sign before
    them, damaged characters, wide ends of sentences) of buf[begin:end], in characters.

    num_chars: of the document. table: `mark_kinds`. Reads up to 65 bytes behind the document.
    """
    digits, punctuation, symbols, solid, damaged, ends = 0, 0, 0, num_chars, 0, 0
    for block in range(begin, end, 64):
        inside = _ALL if end - block >= 64 else (_ONE << np.uint64(end - block)) - _ONE
        followed = _ALL if end - block > 64 else (_ONE << np.uint64(end - block - 1)) - _ONE
        found_digits, found_punctuation, found_symbols, found_spaces, odd, again = _kinds_of_block(
            buf, block
        )
        again &= followed & (found_punctuation | found_symbols)
        digits += count_ones(found_digits & inside)
        punctuation += count_ones(found_punctuation & inside & ~again)
        symbols += count_ones(found_symbols & inside & ~again)
        solid -= count_ones((found_spaces & inside) | again)
        odd &= inside
        while odd:
            pos = block + trailing_zeros(odd)
            odd &= odd - _ONE
            char, behind = decode(buf, pos, end)
            kind = table[char]
            if kind & (PUNCTUATION | SYMBOL) != 0 and _is_repeated(buf, begin, pos, behind - pos):
                solid -= 1
            else:
                punctuation += kind & PUNCTUATION != 0
                symbols += kind & SYMBOL != 0
            ends += kind & SENTENCE_END != 0
            solid -= kind & BLANK != 0
            is_control = kind & CONTROL != 0
            # What a byte from 0xA1 on, or the euro sign, is behind what begins UTF-8.
            is_tail = 0xA1 <= char <= 0xBF and char != 0xAB and char != 0xAD and char != 0xBB
            before = np.int64(0)
            if pos >= begin + 2 and buf[pos - 2] == 0xC3:
                before = 0xC0 + (np.int64(buf[pos - 1]) & 0x3F)
            is_lead = before == 0xC2 or before == 0xC3 or before == 0xD0 or before == 0xD1
            if (is_lead and (is_tail or (is_control and char < 0xA0))) or (
                before == 0xE2 and char == 0x20AC
            ):
                damaged += 2
            elif is_control:
                damaged += 1
    return digits, punctuation, symbols, solid, damaged, ends


@inner
def _is_repeated(buf, begin, pos, size):  # type: ignore[no-untyped-def]
    """Whether the character of so many bytes at `pos` stands before it, too."""
    if pos - size < begin:
        return False
    same = 0
    while same < size and buf[pos - size + same] == buf[pos + same]:
        same += 1
    return same == size

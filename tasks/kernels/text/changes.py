"""Finds the characters that a view may change (`tasks.kernels.text.view`), 64 bytes at a time.

Most characters of most texts stay as they are, so ranges of UTF-8 that never change are told by
vector comparison, and only the others are decoded and looked up. A test holds the ranges against
the tables, for every character.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tasks.kernels.text.vectors import Blocks

PADDING = 72
"""Bytes that are read."""


@intrinsic
def beyond_ascii(typing_context: Any, buf: Any, pos: Any) -> Any:
    """Which of the 64 bytes at buf[pos] are not ASCII, as the bits of a number."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        blocks = Blocks(builder, *arguments)
        return blocks.bits(blocks.below(blocks.load(0), 0))

    return types.uint64(buf, types.int64), generate


@intrinsic
def copy_bytes(typing_context: Any, to: Any, at: Any, buf: Any, pos: Any, size: Any) -> Any:
    """Copy `size` bytes from buf[pos] to to[at], where bytes lie apart."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        to, at, buf, pos, size = arguments
        cgutils.raw_memcpy(builder, builder.gep(to, [at]), builder.gep(buf, [pos]), size, 1)
        return context.get_dummy_value()

    return types.void(to, types.int64, buf, types.int64, types.int64), generate


@intrinsic
def may_change(typing_context: Any, buf: Any, pos: Any) -> Any:
    """Which of the 64 bytes at buf[pos] begin a character that may change, as the bits of a number.

    buf: where bytes lie (`tasks.kernels.text.addresses.pointers`). PADDING bytes are read.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        blocks = Blocks(builder, *arguments)
        first, second, third = blocks.load(0), blocks.load(1), blocks.load(2)
        within, any_of, is_, both = blocks.within, blocks.any_of, blocks.equal, builder.and_

        def but(mask, *others):  # type: ignore[no-untyped-def]
            return both(mask, builder.not_(any_of(*others)))

        found = any_of(
            # Soft hyphens and angle quotes; marks; a middle dot; signs and digits of Arabic, NKo.
            both(is_(first, 0xC2), is_(second, 0xAB, 0xAD, 0xBB)),
            within(first, 0xCC, 0xCD),
            both(is_(first, 0xCA), is_(second, 0xBC)),
            both(is_(first, 0xCE), is_(second, 0x87)),
            both(is_(first, 0xD8), is_(second, 0x9C)),
            both(is_(first, 0xD9), within(second, 0x93, 0xBF)),
            both(is_(first, 0xDB), within(second, 0xB0, 0xBF)),
            both(is_(first, 0xDF), within(second, 0x80, 0x89)),
            # Scripts of India and South-East Asia.
            is_(first, 0xE0),
            # Not Georgian, Ethiopic and Latin with marks.
            but(is_(first, 0xE1), within(second, 0xB8, 0xBB), within(second, 0x88, 0x8D)),
            # General punctuation, letters as symbols and the minus sign.
            both(is_(first, 0xE2), any_of(within(second, 0x80, 0x8C), is_(second, 0xAB))),
            # Of Kana and what surrounds them, a blank, voicing marks and a filler.
            both(is_(first, 0xE3), both(is_(second, 0x80), is_(third, 0x80))),
            both(is_(first, 0xE3), both(is_(second, 0x82), within(third, 0x99, 0x9A))),
            both(is_(first, 0xE3), both(is_(second, 0x85), is_(third, 0xA4))),
            both(is_(first, 0xEA), within(second, 0x80, 0xAF)),
            # Not the full-width comma and similar signs, which are frequent in Chinese.
            but(
                is_(first, 0xEF),
                both(is_(second, 0xBC), is_(third, 0x81, 0x8C, 0x9A, 0x9B, 0x9F)),
            ),
        )
        return blocks.bits(found)

    return types.uint64(buf, types.int64), generate

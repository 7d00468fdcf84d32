"""Builds comparisons of 64 bytes at once, for intrinsics that give their results as bit masks.

Each method adds instructions of LLVM to the function that the builder is in. Nothing is checked:
the caller has as many bytes behind `pos` as are loaded.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from llvmlite import ir

BLOCK = 64
"""Bytes of a block; a comparison gives one bit for each."""
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_BYTES = ir.VectorType(_BYTE, BLOCK)


class Blocks:
    """Blocks of 64 bytes at and behind one place of a buffer (`addresses.pointers`)."""

    def __init__(self, builder: Any, buf: Any, pos: Any) -> None:
        self._builder, self._buf, self._pos = builder, buf, pos

    def load(self, ahead: int) -> Any:
        """The block that begins `ahead` bytes behind the place."""
        offset = self._builder.add(self._pos, ir.Constant(_WORD, ahead))
        place = self._builder.gep(self._buf, [offset])
        block = self._builder.load(self._builder.bitcast(place, _BYTES.as_pointer()))
        block.align = 1
        return block

    def all_of(self, value: int) -> Any:
        """A block of equal bytes."""
        return ir.Constant(_BYTES, [ir.Constant(_BYTE, value)] * BLOCK)

    def within(self, block: Any, first: int, last: int) -> Any:
        """Which bytes are from `first` to `last`."""
        above = self._builder.sub(block, self.all_of(first))
        return self._builder.icmp_unsigned("<=", above, self.all_of(last - first))

    def below(self, block: Any, value: int) -> Any:
        """Which bytes are less than a value, where those from 0x80 on are negative."""
        return self._builder.icmp_signed("<", block, self.all_of(value))

    def equal(self, block: Any, *values: int) -> Any:
        """Which bytes are one of the values."""
        compared = (self._builder.icmp_unsigned("==", block, self.all_of(v)) for v in values)
        return self.any_of(*compared)

    def same(self, block: Any, other: Any) -> Any:
        """Which bytes two blocks have in common."""
        return self._builder.icmp_unsigned("==", block, other)

    def any_of(self, *masks: Any) -> Any:
        """Which bits one of the masks has."""
        return reduce(self._builder.or_, masks)

    def bits(self, mask: Any) -> Any:
        """The mask as a number of 64 bits, that of the first byte lowest."""
        return self._builder.bitcast(mask, _WORD)

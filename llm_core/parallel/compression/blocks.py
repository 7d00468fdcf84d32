"""Says how compressed sums cut what they send: blocks of numbers share a scale, and large matrices
are sent as two factors. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 1024
"""Numbers that share a scale."""
SCALE_BYTES = 4
NUMBER_BYTES = 4
"""Bytes of a number of a weight or its gradient."""

Shape = Sequence[int]


def padded_length(numel: int, size: int) -> int:
    """Length of a flat vector of `numel` numbers that `size` processes share in whole blocks."""
    return -(-numel // (size * BLOCK)) * size * BLOCK


def shrinks(shape: Shape, rank: int) -> bool:
    """Whether the two factors of a matrix of this shape have less than half of its numbers."""
    return len(shape) == 2 and 2 * sum(shape) * rank < shape[0] * shape[1]

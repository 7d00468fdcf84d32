"""Cuts what compressed sums send: into blocks of numbers that share a scale, and matrices that
two factors stand for. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 1024
"""Numbers that share a scale."""
SCALE_BYTES = 4
NUMBER_BYTES = 4
"""Of a weight and its gradient."""

Shape = Sequence[int]


def padded_length(numel: int, size: int) -> int:
    """Of a flat vector that `size` processes share in whole blocks."""
    return -(-numel // (size * BLOCK)) * size * BLOCK


def shrinks(shape: Shape, rank: int) -> bool:
    """Whether a matrix of this shape and its two factors differ by a factor of more than two."""
    return len(shape) == 2 and 2 * sum(shape) * rank < shape[0] * shape[1]

"""Says how many bytes compressed sums send and keep. Standard library only, so that the planner
reads the rules that sums follow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_core.parallel.config import ParallelConfig

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


def sent_bytes(shapes: Sequence[Shape], parallel: ParallelConfig) -> float:
    """What is left of the gradients of these weights, after the warm-up; `compress` is not none."""
    rank, numel = parallel.compress_rank, sum(map(math.prod, shapes))
    if parallel.compress == "powersgd":
        return NUMBER_BYTES * sum(
            sum(shape) * rank if shrinks(shape, rank) else math.prod(shape) for shape in shapes
        )
    return numel * ((1 / 8 if parallel.compress == "onebit" else 1) + SCALE_BYTES / BLOCK)


def carried_bytes(shapes: Sequence[Shape], parallel: ParallelConfig) -> int:
    """What a process keeps of sums of these weights from step to step."""
    rank, numel = parallel.compress_rank, sum(map(math.prod, shapes))
    if parallel.compress == "powersgd":
        thin = [shape for shape in shapes if shrinks(shape, rank)]
        return NUMBER_BYTES * sum(math.prod(shape) + shape[1] * rank for shape in thin)
    if parallel.compress == "onebit":
        size = parallel.num_processes
        return NUMBER_BYTES * (numel + padded_length(numel, size) // size)
    return 0

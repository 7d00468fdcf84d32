"""Says how many bytes compressed sums send and keep. Standard library only, so that the planner
reads the rules that sums follow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_core.parallel.compression.blocks import (
    BLOCK,
    NUMBER_BYTES,
    SCALE_BYTES,
    Shape,
    padded_length,
    shrinks,
)
from llm_core.parallel.config import ParallelConfig


def sent_bytes(shapes: Sequence[Shape], parallel: ParallelConfig) -> float:
    """Bytes that stand for the gradients of these weights after the warm-up; `compress` is not
    none."""
    rank, numel = parallel.compress_rank, sum(map(math.prod, shapes))
    if parallel.compress == "powersgd":
        return NUMBER_BYTES * sum(
            sum(shape) * rank if shrinks(shape, rank) else math.prod(shape) for shape in shapes
        )
    return numel * ((1 / 8 if parallel.compress == "onebit" else 1) + SCALE_BYTES / BLOCK)


def carried_bytes(shapes: Sequence[Shape], parallel: ParallelConfig) -> int:
    """Bytes that a process carries from step to step for these weights."""
    rank, numel = parallel.compress_rank, sum(map(math.prod, shapes))
    if parallel.compress == "powersgd":
        thin = [shape for shape in shapes if shrinks(shape, rank)]
        return NUMBER_BYTES * sum(math.prod(shape) + shape[1] * rank for shape in thin)
    if parallel.compress == "onebit":
        size = parallel.num_processes
        return NUMBER_BYTES * (numel + padded_length(numel, size) // size)
    return 0

"""Finds the largest magnitude among numbers that a kernel has computed and still holds, so that
rounding them to 8 bits takes no pass of its own for it.

Each program keeps one word; the largest of these is a small reduction of torch. Magnitudes are
compared by their bits without the sign, whose order is that of the numbers and puts NaN above
all.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def magnitude(values):  # type: ignore[no-untyped-def]
    """Bits of each number in float32, without its sign."""
    return values.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def keep_largest(largest, magnitudes):  # type: ignore[no-untyped-def]
    """Write the largest of two-dimensional magnitudes as that of this program."""
    program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(largest + program, tl.max(tl.max(magnitudes, axis=1), axis=0))


def largest_of(parts: Tensor) -> Tensor:
    """The magnitude whose bits are the highest."""
    return parts.amax().view(torch.float32)

"""A tensor in 8 bits and its transpose in Triton, in one pass over memory: what both products of a
linear layer's backward read.

Compiled from torch's operations, each transposed copy is a kernel of scattered writes, at half the
speed of memory and less. Here a program turns a square of numbers round before it leaves the
processor. An operation of torch's library, so that compiled blocks keep it in one graph; without a
gradient, as `llm_core.model.float8` has its own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from llm_core.kernels.float8 import Rounded, scale_for

SIDE = 128
"""Of the square: in 8 bits a row of it is one line of the cache, straight and turned."""


@triton.jit
def quantize_square(x, scale, out, turned, rows, columns, most, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    column = tl.program_id(1).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    there = (row[:, None] < rows) & (column[None, :] < columns)
    value = tl.load(x + row[:, None] * columns + column[None, :], mask=there, other=0).to(
        tl.float32
    )
    # Exact, as the scale is a power of two: else halves between two numbers of 8 bits would fall
    # on either side, and a division as torch does it takes longer than memory.
    value = value * (1 / tl.load(scale))
    value = tl.clamp(value, -most, most, propagate_nan=tl.PropagateNan.ALL).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * columns + column[None, :], value, mask=there)
    tl.store(turned + column[:, None] * rows + row[None, :], tl.trans(value), mask=tl.trans(there))


@library.custom_op(
    "llm_core::quantize",
    mutates_args=(),
    schema="(Tensor x, Tensor scale, ScalarType dtype) -> (Tensor, Tensor)",
)
def _quantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    assert x.element_size() == 2, "turned squares of other numbers come out wrong"
    out, turned = _shapes(x, scale, dtype)
    rows, columns = x.shape
    if x.numel():
        grid: Any = triton.cdiv(rows, SIDE), triton.cdiv(columns, SIDE)
        most = torch.finfo(dtype).max
        quantize_square[grid](
            x.contiguous(), scale, out, turned, rows, columns, most, SIDE=SIDE, num_warps=8
        )
    return out, turned


@_quantize.register_fake
def _shapes(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[::-1], dtype=dtype)


def quantize(x: Tensor, dtype: torch.dtype, largest: Tensor | None = None) -> Rounded:
    """As `float8.quantize`, of 16-bit numbers; rounds others to bfloat16 first, as FSDP does."""
    # Triton 3.6 puts a third of a square in wrong places of its transpose where 8-bit numbers come
    # from 32-bit ones.
    x = x if x.element_size() == 2 else x.bfloat16()
    scale = scale_for(x.abs().amax() if largest is None else largest, dtype)
    return *_quantize(x, scale, dtype), scale

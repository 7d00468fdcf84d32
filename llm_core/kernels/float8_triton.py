"""A tensor in 8 bits and its transpose in Triton, in one pass over memory: what both products of a
linear layer's backward read.

Compiled from torch's operations, each transposed copy is a kernel of scattered writes, at half the
speed of memory and less. Here a program turns a block of numbers round before it leaves the
processor: in words of four rows each, because units that hand numbers over between threads are made
for words, and bytes take four times as long. An operation of torch's library, so that compiled
blocks keep it in one graph; without a gradient, as `llm_core.model.float8` has its own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from llm_core.kernels import float8
from llm_core.kernels.float8 import Rounded, scale_for

ROWS, COLUMNS, WARPS = 128, 128, 8
"""Of the block: in 8 bits a row of it is one line of the cache, straight and turned."""


@triton.jit
def _round(x, out, place, there, inverse, most):  # type: ignore[no-untyped-def]
    """The 8 bits of numbers at places of x, which are stored, as the lowest of a word."""
    # Wider weights come from FSDP in bfloat16, so elsewhere they are rounded to it first.
    value = tl.load(x + place, mask=there, other=0).to(tl.bfloat16).to(tl.float32)
    # Exact, as the scale is a power of two: else halves between two numbers of 8 bits would fall
    # on either side, and a division as torch does it takes longer than memory.
    value = tl.clamp(value * inverse, -most, most, propagate_nan=tl.PropagateNan.ALL)
    short = value.to(out.dtype.element_ty)
    tl.store(out + place, short, mask=there)
    return short.to(tl.uint8, bitcast=True).to(tl.int32)


@triton.jit
def quantize_block(  # type: ignore[no-untyped-def]
    x, scale, out, turned, fours, columns, most, FOURS: tl.constexpr, COLUMNS: tl.constexpr
):
    four = tl.program_id(0).to(tl.int64) * FOURS + tl.arange(0, FOURS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    there = (four[:, None] < fours) & (column[None, :] < columns)
    place = four[:, None] * 4 * columns + column[None, :]
    inverse = 1 / tl.load(scale)
    word = _round(x, out, place, there, inverse, most)
    word |= _round(x, out, place + columns, there, inverse, most) << 8
    word |= _round(x, out, place + 2 * columns, there, inverse, most) << 16
    word |= _round(x, out, place + 3 * columns, there, inverse, most) << 24
    turned_place = column[:, None] * fours + four[None, :]
    tl.store(turned + turned_place, tl.trans(word), mask=tl.trans(there))


@library.custom_op(
    "llm_core::quantize",
    mutates_args=(),
    schema="(Tensor x, Tensor scale, ScalarType dtype) -> (Tensor, Tensor)",
)
def _quantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out, turned = _shapes(x, scale, dtype)
    write(x, scale, out, turned)
    return out, turned


@_quantize.register_fake
def _shapes(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[::-1], dtype=dtype)


def write(x: Tensor, scale: Tensor, out: Tensor, turned: Tensor) -> None:
    """The numbers of x [I, J] / scale into out [I, J] and turned [J, I]; I in multiples of 4."""
    rows, columns = x.shape
    if x.numel():
        grid: Any = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
        quantize_block[grid](
            x.contiguous(), scale, out, turned.view(torch.int32), rows // 4, columns,
            torch.finfo(out.dtype).max, FOURS=ROWS // 4, COLUMNS=COLUMNS, num_warps=WARPS,
        )  # fmt: skip


def quantize(x: Tensor, dtype: torch.dtype, largest: Tensor | None = None) -> Rounded:
    """As `float8.quantize`, of 16-bit numbers; rounds others to bfloat16 first, as FSDP does."""
    if x.shape[0] % 4:  # no words, and no product of 8 bits
        return float8.quantize(x.bfloat16(), dtype, largest)
    # Rounded, the largest is still the largest.
    largest = (x.abs().amax() if largest is None else largest).bfloat16()
    scale = scale_for(largest, dtype)
    return *_quantize(x, scale, dtype), scale

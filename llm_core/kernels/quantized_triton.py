"""Multiplies by weights in 8 or 4 bits in Triton: they are read once, and restored in registers.

One row, which is bound by memory, is multiplied and summed (`row_product`); up to MOST_ROWS go
through tensor cores tile by tile (`rows_product`), with scales applied to sums: to whole sums of
int8 and fp8, to those of each group of int4, whose offset meets the sum of the group's inputs. So
numbers enter products exactly, and only x's dtype rounds. More rows are bound by arithmetic: the
weight is written in x's dtype once, and cuBLAS multiplies.

Layouts are those of `llm_core.quantize.formats`. `TRITON_INTERPRET=1` runs the kernels on a CPU.
"""

from __future__ import annotations

from typing import Any, Protocol

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

# M rows of x · N outputs · K inputs · G groups of inputs
GROUP: tl.constexpr = tl.constexpr(64)
"""As `llm_core.quantize.formats.GROUP`."""
MOST_ROWS = 64
ROW_OUTPUTS, ROW_INPUTS = 8, 1024
"""Of a program for one row: with fewer, too few bytes are on the way; with more, registers
spill."""
TILE_OUTPUTS, TILE_INPUTS = 32, 128


class Stored(Protocol):
    """What is needed of `llm_core.quantize.formats.Rounded`."""

    @property
    def num_inputs(self) -> int: ...
    @property
    def numbers(self) -> Tensor: ...
    @property
    def scale(self) -> Tensor: ...
    @property
    def offset(self) -> Tensor | None: ...


@triton.jit
def row_product(x, numbers, scale, y, N, K, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """int8 and fp8: y[N] of one row x[K]."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    places = numbers + n[:, None].to(tl.int64) * K + k[None, :]
    total = tl.zeros((BN, BK), tl.float32)
    for begin in tl.range(0, K, BK):
        there = begin + k < K
        w = tl.load(places + begin, mask=(n < N)[:, None] & there[None, :], other=0.0)
        xk = tl.load(x + begin + k, mask=there, other=0.0).to(tl.float32)
        total += w.to(tl.float32) * xk[None, :]
    out = tl.sum(total, 1) * tl.load(scale + n, mask=n < N, other=0.0)
    tl.store(y + n, out.to(y.dtype.element_ty), mask=n < N)


@triton.jit
def row_product_int4(x, numbers, scale, offset, y, N, K, G, BN: tl.constexpr, BG: tl.constexpr):  # type: ignore[no-untyped-def]
    """y[N] of one row x[K]. The bytes of a group are a dimension of their own."""
    HALF: tl.constexpr = GROUP // 2
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    g = tl.arange(0, BG)
    i = tl.arange(0, HALF)
    total = tl.zeros((BN, BG, HALF), tl.float32)
    for begin in tl.range(0, G, BG):
        there = (n < N)[:, None] & (begin + g < G)[None, :]
        place = n[:, None].to(tl.int64) * G + begin + g[None, :]
        step = tl.load(scale + place, mask=there, other=0.0).to(tl.float32)
        # Numbers are stored with 8 added.
        zero = tl.load(offset + place, mask=there, other=0.0).to(tl.float32) - 8 * step
        w = tl.load(
            numbers + place[:, :, None] * HALF + i[None, None, :], mask=there[:, :, None], other=0
        )
        k = (begin + g)[:, None] * GROUP + i[None, :]
        low = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        high = tl.load(x + k + HALF, mask=k + HALF < K, other=0.0).to(tl.float32)
        both = (w & 15).to(tl.float32) * low[None, :, :] + (w >> 4).to(tl.float32) * high[
            None, :, :
        ]
        total += both * step[:, :, None] + zero[:, :, None] * (low + high)[None, :, :]
    out = tl.sum(tl.sum(total, 2), 1)
    tl.store(y + n, out.to(y.dtype.element_ty), mask=n < N)


@triton.jit
def rows_product(  # type: ignore[no-untyped-def]
    x, numbers, scale, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """int8 and fp8: y[M, N] of rows x[M, K]."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    places = numbers + n[None, :].to(tl.int64) * K + k[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for begin in tl.range(0, K, BK):
        there = begin + k < K
        w = tl.load(places + begin, mask=(n < N)[None, :] & there[:, None], other=0.0)
        xk = tl.load(
            x + m[:, None] * K + begin + k[None, :], mask=(m < M)[:, None] & there[None, :], other=0
        )
        total = tl.dot(xk, w.to(xk.dtype), total, input_precision="ieee")
    total *= tl.load(scale + n, mask=n < N, other=0.0)[None, :]
    is_ours = (m < M)[:, None] & (n < N)[None, :]
    tl.store(y + m[:, None] * N + n[None, :], total.to(y.dtype.element_ty), mask=is_ours)


@triton.jit
def rows_product_int4(x, numbers, scale, offset, y, M, N, K, G, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """y[M, N] of rows x[M, K], a group at a time."""
    HALF: tl.constexpr = GROUP // 2
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    i = tl.arange(0, HALF)
    of_row = n.to(tl.int64) * G
    total = tl.zeros((BM, BN), tl.float32)
    for g in tl.range(0, G):
        step = tl.load(scale + of_row + g, mask=n < N, other=0.0).to(tl.float32)
        zero = tl.load(offset + of_row + g, mask=n < N, other=0.0).to(tl.float32) - 8 * step
        places = numbers + (of_row + g)[None, :] * HALF + i[:, None]
        w = tl.load(places, mask=(n < N)[None, :], other=0)
        k = g * GROUP + i
        rows = x + m[:, None] * K + k[None, :]
        low = tl.load(rows, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        high = tl.load(rows + HALF, mask=(m < M)[:, None] & (k + HALF < K)[None, :], other=0.0)
        sums = tl.dot(low, (w & 15).to(low.dtype), input_precision="ieee")
        sums = tl.dot(high, (w >> 4).to(low.dtype), sums, input_precision="ieee")
        inputs = tl.sum(low.to(tl.float32) + high.to(tl.float32), 1)
        total += sums * step[None, :] + inputs[:, None] * zero[None, :]
    is_ours = (m < M)[:, None] & (n < N)[None, :]
    tl.store(y + m[:, None] * N + n[None, :], total.to(y.dtype.element_ty), mask=is_ours)


@triton.jit
def restore_int4(numbers, scale, offset, weight, N, K, G, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """weight[N, K]: a group of BN rows in a program."""
    HALF: tl.constexpr = GROUP // 2
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    g = tl.program_id(1)
    i = tl.arange(0, HALF)
    place = n.to(tl.int64) * G + g
    step = tl.load(scale + place, mask=n < N, other=0.0).to(tl.float32)[:, None]
    zero = tl.load(offset + place, mask=n < N, other=0.0).to(tl.float32)[:, None]
    w = tl.load(numbers + place[:, None] * HALF + i[None, :], mask=(n < N)[:, None], other=0)
    out = weight + n[:, None].to(tl.int64) * K + g * GROUP + i[None, :]
    dtype: tl.constexpr = weight.dtype.element_ty
    low = ((w & 15).to(tl.float32) - 8) * step + zero
    high = ((w >> 4).to(tl.float32) - 8) * step + zero
    k = g * GROUP + i[None, :]
    tl.store(out, low.to(dtype), mask=(n < N)[:, None] & (k < K))
    tl.store(out + HALF, high.to(dtype), mask=(n < N)[:, None] & (k + HALF < K))


def product(x_MK: Tensor, stored: Stored) -> Tensor:
    """x weightᵀ in x's dtype, which has 16 or 32 bits."""
    x_MK = x_MK.contiguous()
    (M, K), N = x_MK.shape, len(stored.numbers)
    y_MN = x_MK.new_empty(M, N)
    if M == 0:
        return y_MN
    if M > MOST_ROWS:
        return _product_of_many(x_MK, stored)
    numbers, scale, offset = stored.numbers, stored.scale, stored.offset
    tile = max(16, triton.next_power_of_2(M))
    grid: Any = triton.cdiv(N, TILE_OUTPUTS), triton.cdiv(M, tile)
    row_grid: Any = (triton.cdiv(N, ROW_OUTPUTS),)
    if offset is None:
        if M == 1:
            sizes = {"BN": ROW_OUTPUTS, "BK": min(ROW_INPUTS, triton.next_power_of_2(K))}
            row_product[row_grid](x_MK, numbers, scale, y_MN, N, K, **sizes, num_warps=4)
        else:
            sizes = {"BM": tile, "BN": TILE_OUTPUTS, "BK": TILE_INPUTS}
            rows_product[grid](
                x_MK, numbers, scale, y_MN, M, N, K, **sizes, num_warps=4, num_stages=4
            )
        return y_MN
    G = scale.shape[1]
    if M == 1:
        sizes = {"BN": ROW_OUTPUTS, "BG": min(ROW_INPUTS // 64, triton.next_power_of_2(G))}
        row_product_int4[row_grid](
            x_MK, numbers, scale, offset, y_MN, N, K, G, **sizes, num_warps=4
        )
    else:
        sizes = {"BM": tile, "BN": TILE_OUTPUTS}
        rows_product_int4[grid](
            x_MK, numbers, scale, offset, y_MN, M, N, K, G, **sizes, num_warps=4, num_stages=4
        )
    return y_MN


def _product_of_many(x_MK: Tensor, stored: Stored) -> Tensor:
    if stored.offset is None:
        # 16 bits hold the numbers exactly; scales come after the sums.
        y_MN = F.linear(x_MK, stored.numbers.to(x_MK.dtype))
        return (y_MN * stored.scale).to(x_MK.dtype)
    (N, G), K, rows = stored.scale.shape, stored.num_inputs, 64
    weight_NK = x_MK.new_empty(N, K)
    grid: Any = triton.cdiv(N, rows), G
    restore_int4[grid](
        stored.numbers, stored.scale, stored.offset, weight_NK, N, K, G, BN=rows, num_warps=4
    )
    return F.linear(x_MK, weight_NK)

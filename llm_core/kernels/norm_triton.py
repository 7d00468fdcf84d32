"""x + delta and its root-mean-square norm in Triton, forward and backward one pass over memory
each.

Compiled from torch's operations, backward reads what the sum was made of and recomputes it, once
for the gradient of the stream and once for that of the weight: nine tensors of the stream moved in
place of four. Here the sum is kept, not a summand, and a program of backward takes many rows, so
that it adds up its part of the weight's gradient on the way. Computed in float32; the sum is
rounded before it is normed, as elsewhere. Operations of torch's library, as in `swiglu_triton`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library, nn

PROGRAMS = 1024
"""Of backward: some for each multiprocessor, and few enough parts of the weight's gradient."""


@triton.jit
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


@triton.jit
def add_norm_forward(x, delta, weight, total, normed, scales, width, eps, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    place, there = row * width + column, column < width
    summed = tl.load(x + place, mask=there, other=0).to(tl.float32) + tl.load(
        delta + place, mask=there, other=0
    ).to(tl.float32)
    summed = summed.to(total.dtype.element_ty)
    tl.store(total + place, summed, mask=there)
    precise = summed.to(tl.float32)
    scale = 1 / tl.sqrt(tl.reduce(precise * precise, 0, _add) / width + eps)
    tl.store(scales + row, scale)
    result = precise * scale * tl.load(weight + column, mask=there, other=0).to(tl.float32)
    tl.store(normed + place, result.to(normed.dtype.element_ty), mask=there)


@triton.jit
def add_norm_backward(  # type: ignore[no-untyped-def]
    total, scales, weight, d_total, d_normed, out, d_weights, num_rows, width, COLUMNS: tl.constexpr
):
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    there = column < width
    factor = tl.load(weight + column, mask=there, other=0).to(tl.float32)
    d_weight = tl.full((COLUMNS,), 0, dtype=tl.float32)
    place = program.to(tl.int64) * width + column
    for row in range(program, num_rows, tl.num_programs(0)):
        scale = tl.load(scales + row)
        unit = tl.load(total + place, mask=there, other=0).to(tl.float32) * scale
        d = tl.load(d_normed + place, mask=there, other=0).to(tl.float32)
        passed = tl.load(d_total + place, mask=there, other=0).to(tl.float32)
        d_weight += d * unit
        d *= factor
        # A norm has no gradient along its own direction.
        d = (d - unit * (tl.reduce(d * unit, 0, _add) / width)) * scale
        tl.store(out + place, (passed + d).to(out.dtype.element_ty), mask=there)
        place += tl.num_programs(0) * width
    tl.store(d_weights + program.to(tl.int64) * width + column, d_weight, mask=there)


@library.custom_op(
    "llm_core::add_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor delta, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
)
def add_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x + delta, its norm, the scale of each row), all but the last in the dtype of x."""
    assert torch.promote_types(x.dtype, delta.dtype) == x.dtype, (
        "what is added must not be wider than the stream"
    )
    total, normed, scales = _shapes(x, delta, weight, eps)
    width = x.shape[-1]
    if x.numel():
        columns = triton.next_power_of_2(width)
        add_norm_forward[(x.numel() // width,)](
            x.contiguous(), delta.contiguous(), weight, total, normed, scales, width, eps,
            COLUMNS=columns, num_warps=_warps(columns),
        )  # fmt: skip
    return total, normed, scales


@library.custom_op(
    "llm_core::add_norm_backward",
    mutates_args=(),
    schema=(
        "(Tensor total, Tensor scales, Tensor weight, Tensor d_total, Tensor d_normed) -> (Tensor,"
        " Tensor)"
    ),
)
def gradients(
    total: Tensor, scales: Tensor, weight: Tensor, d_total: Tensor, d_normed: Tensor
) -> tuple[Tensor, Tensor]:
    """Of the sum, which is that of both summands, and of the weight, in its dtype."""
    width = total.shape[-1]
    num_rows = total.numel() // width
    programs = min(PROGRAMS, num_rows)
    out, parts = torch.empty_like(total), total.new_zeros((programs, width), dtype=torch.float32)
    if num_rows:
        columns = triton.next_power_of_2(width)
        add_norm_backward[(programs,)](
            total, scales, weight, d_total.contiguous(), d_normed.contiguous(), out, parts, num_rows, width,  # noqa: E501
            COLUMNS=columns, num_warps=_warps(columns),
        )  # fmt: skip
    return out, parts.sum(dim=0).to(weight.dtype)


@add_norm.register_fake
def _shapes(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    total, normed = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    return total, normed, x.new_empty(x.shape[:-1], dtype=torch.float32)


@gradients.register_fake
def _shapes_of_gradients(
    total: Tensor, scales: Tensor, weight: Tensor, d_total: Tensor, d_normed: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(total), torch.empty_like(weight)


def _keep(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    total, _, scales = output
    ctx.mark_non_differentiable(scales)
    ctx.save_for_backward(total, scales, inputs[2])
    ctx.dtype = inputs[1].dtype


def _go_back(
    ctx: Any, d_total: Tensor, d_normed: Tensor, _: Tensor
) -> tuple[Tensor, Tensor, Tensor, None]:
    d_stream, d_weight = gradients(*ctx.saved_tensors, d_total, d_normed)
    return d_stream, d_stream.to(ctx.dtype), d_weight, None


add_norm.register_autograd(_go_back, setup_context=_keep)


def add_then_norm(x: Tensor, delta: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """As `llm_core.model.norm.add_then_norm`, for RMSNorm."""
    total, normed, _ = add_norm(x, delta, norm.weight.to(x.dtype), norm.eps)
    return total, normed


def _warps(columns: int) -> int:
    # 16 channels a thread, two loads of 16 bytes in 16-bit formats.
    return min(16, max(1, columns // 512))

"""silu(gate) * up and its gradient in Triton: forward reads gate and up once, backward those and
the gradient, and writes both.

Compiled from torch's operations, backward is two kernels, one for each half of a gradient that is
one tensor, and each reads all three inputs: 8 numbers moved for each channel in place of 5.
Computed in float32, rounded once. Operations of torch's library, so that compiled blocks keep them
in one graph and `memory.recompute` can recompute them; without it the result is kept for the
gradient of the next weight, as the compiler keeps its own. Needs the package triton;
`TRITON_INTERPRET=1` runs them on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

# A run is a block of gate channels and, behind it, the block of up channels that belongs to it:
# `width` of each.

ELEMENTS = 2048
"""Of each tensor, per program of four warps: 16 a thread, two loads of 16 bytes in 16 bits."""


@triton.jit
def _places(num_runs, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(of gate channels, of results, which exist), in 64 bits: rows may have 2**31 numbers."""
    run = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return run * (2 * width) + column, run * width + column, (run < num_runs) & (column < width)


@triton.jit
def swiglu_forward(gate_up, out, num_runs, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    gate_place, out_place, there = _places(num_runs, width, ROWS, COLUMNS)
    gate = tl.load(gate_up + gate_place, mask=there, other=0).to(tl.float32)
    up = tl.load(gate_up + gate_place + width, mask=there, other=0).to(tl.float32)
    tl.store(
        out + out_place, (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=there
    )


@triton.jit
def swiglu_backward(gate_up, grad, out, num_runs, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    gate_place, grad_place, there = _places(num_runs, width, ROWS, COLUMNS)
    gate = tl.load(gate_up + gate_place, mask=there, other=0).to(tl.float32)
    up = tl.load(gate_up + gate_place + width, mask=there, other=0).to(tl.float32)
    d = tl.load(grad + grad_place, mask=there, other=0).to(tl.float32)
    share = 1 / (1 + tl.exp(-gate))
    d_gate = d * up * share * (1 + gate * (1 - share))
    tl.store(out + gate_place, d_gate.to(out.dtype.element_ty), mask=there)
    tl.store(out + gate_place + width, (d * gate * share).to(out.dtype.element_ty), mask=there)


@library.custom_op(
    "llm_core::swiglu", mutates_args=(), schema="(Tensor gate_up, int width) -> Tensor"
)
def gated(gate_up: Tensor, width: int) -> Tensor:
    """As `llm_core.model.transformer.gated`."""
    out = _shape_of_result(gate_up, width)
    _launch(swiglu_forward, gate_up.numel() // (2 * width), width, gate_up.contiguous(), out)
    return out


@library.custom_op(
    "llm_core::swiglu_backward",
    mutates_args=(),
    schema="(Tensor gate_up, Tensor grad, int width) -> Tensor",
)
def gradient(gate_up: Tensor, grad: Tensor, width: int) -> Tensor:
    """Of gate_up, from that of the result."""
    out = torch.empty_like(gate_up, memory_format=torch.contiguous_format)
    num_runs = gate_up.numel() // (2 * width)
    _launch(swiglu_backward, num_runs, width, gate_up.contiguous(), grad.contiguous(), out)
    return out


@gated.register_fake
def _shape_of_result(gate_up: Tensor, width: int) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


@gradient.register_fake
def _shape_of_gradient(gate_up: Tensor, grad: Tensor, width: int) -> Tensor:
    return torch.empty_like(gate_up, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.width = inputs[1]


def _go_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return gradient(*ctx.saved_tensors, grad, ctx.width), None


gated.register_autograd(_go_back, setup_context=_keep)


def _launch(kernel: Any, num_runs: int, width: int, *tensors: Tensor) -> None:
    # The largest power of two in the width, so that no lane is idle where widths are multiples of
    # 16.
    columns = min(1024, width & -width)
    if columns < 16:
        columns = min(1024, triton.next_power_of_2(width))
    rows = ELEMENTS // columns
    grid = triton.cdiv(num_runs, rows), triton.cdiv(width, columns)
    if num_runs:
        kernel[grid](*tensors, num_runs, width, ROWS=rows, COLUMNS=columns)

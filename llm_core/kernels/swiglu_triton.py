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

from llm_core.kernels.largest_triton import keep_largest, magnitude

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
def swiglu_forward(  # type: ignore[no-untyped-def]
    gate_up, out, largest, num_runs, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MEASURES: tl.constexpr,
):  # fmt: skip
    gate_place, out_place, there = _places(num_runs, width, ROWS, COLUMNS)
    gate = tl.load(gate_up + gate_place, mask=there, other=0).to(tl.float32)
    up = tl.load(gate_up + gate_place + width, mask=there, other=0).to(tl.float32)
    result = (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty)
    tl.store(out + out_place, result, mask=there)
    if MEASURES:
        keep_largest(largest, magnitude(result))


@triton.jit
def swiglu_backward(  # type: ignore[no-untyped-def]
    gate_up, grad, out, largest, num_runs, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MEASURES: tl.constexpr,
):  # fmt: skip
    gate_place, grad_place, there = _places(num_runs, width, ROWS, COLUMNS)
    gate = tl.load(gate_up + gate_place, mask=there, other=0).to(tl.float32)
    up = tl.load(gate_up + gate_place + width, mask=there, other=0).to(tl.float32)
    d = tl.load(grad + grad_place, mask=there, other=0).to(tl.float32)
    share = 1 / (1 + tl.exp(-gate))
    d_gate = (d * up * share * (1 + gate * (1 - share))).to(out.dtype.element_ty)
    d_up = (d * gate * share).to(out.dtype.element_ty)
    tl.store(out + gate_place, d_gate, mask=there)
    tl.store(out + gate_place + width, d_up, mask=there)
    if MEASURES:
        keep_largest(largest, tl.maximum(magnitude(d_gate), magnitude(d_up)))


@library.custom_op(
    "llm_core::swiglu", mutates_args=(), schema="(Tensor gate_up, int width) -> Tensor"
)
def gated(gate_up: Tensor, width: int) -> Tensor:
    """As `llm_core.model.feed_forward.gated`."""
    out = _shape_of_result(gate_up, width)
    _launch(swiglu_forward, None, width, gate_up.contiguous(), out)
    return out


@library.custom_op(
    "llm_core::swiglu_measured",
    mutates_args=(),
    schema="(Tensor gate_up, int width) -> (Tensor, Tensor)",
)
def gated_measured(gate_up: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(`gated`, bits of the largest magnitude of each program), without a gradient."""
    out, largest = _shapes_measured(gate_up, width)
    _launch(swiglu_forward, largest, width, gate_up.contiguous(), out)
    return out, largest


@library.custom_op(
    "llm_core::swiglu_backward",
    mutates_args=(),
    schema="(Tensor gate_up, Tensor grad, int width) -> Tensor",
)
def gradient(gate_up: Tensor, grad: Tensor, width: int) -> Tensor:
    """Of gate_up, from that of the result."""
    out = _shape_of_gradient(gate_up, grad, width)
    _launch(swiglu_backward, None, width, gate_up.contiguous(), grad.contiguous(), out)
    return out


@library.custom_op(
    "llm_core::swiglu_backward_measured",
    mutates_args=(),
    schema="(Tensor gate_up, Tensor grad, int width) -> (Tensor, Tensor)",
)
def gradient_measured(gate_up: Tensor, grad: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(`gradient`, bits of the largest magnitude of each program)."""
    out, largest = _shapes_of_gradient_measured(gate_up, grad, width)
    _launch(swiglu_backward, largest, width, gate_up.contiguous(), grad.contiguous(), out)
    return out, largest


@gated.register_fake
def _shape_of_result(gate_up: Tensor, width: int) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


@gradient.register_fake
def _shape_of_gradient(gate_up: Tensor, grad: Tensor, width: int) -> Tensor:
    return torch.empty_like(gate_up, memory_format=torch.contiguous_format)


@gated_measured.register_fake
def _shapes_measured(gate_up: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return _shape_of_result(gate_up, width), _parts(gate_up, width)


@gradient_measured.register_fake
def _shapes_of_gradient_measured(
    gate_up: Tensor, grad: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    return _shape_of_gradient(gate_up, grad, width), _parts(gate_up, width)


def _parts(gate_up: Tensor, width: int) -> Tensor:
    """Room for one number of each program."""
    *_, grid = _blocks(gate_up.numel() // (2 * width), width)
    return gate_up.new_empty(grid[0] * grid[1], dtype=torch.int32)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.width = inputs[1]


def _go_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return gradient(*ctx.saved_tensors, grad, ctx.width), None


gated.register_autograd(_go_back, setup_context=_keep)


def _blocks(num_runs: int, width: int) -> tuple[int, int, tuple[int, int]]:
    """(runs, channels) that a program works on, and the grid of programs."""
    # The largest power of two in the width, so that no lane is idle where widths are multiples of
    # 16.
    columns = min(1024, width & -width)
    if columns < 16:
        columns = min(1024, 1 << (width - 1).bit_length())
    rows = ELEMENTS // columns
    return rows, columns, (-(-num_runs // rows), -(-width // columns))


def _launch(kernel: Any, largest: Tensor | None, width: int, *tensors: Tensor) -> None:
    num_runs = tensors[0].numel() // (2 * width)
    rows, columns, grid = _blocks(num_runs, width)
    if num_runs:
        kernel[grid](
            *tensors, tensors[-1] if largest is None else largest, num_runs, width,
            ROWS=rows, COLUMNS=columns, MEASURES=largest is not None,
        )  # fmt: skip

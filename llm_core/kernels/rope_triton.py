"""Queries and keys out of the fused product, turned by their positions, in Triton: forward and
backward one pass over memory.

Compiled from torch's operations, backward turns gradients back and joins those of queries, keys and
values in one kernel of scattered writes, and the values stay a view that keeps all of the product
in memory. Here a program takes one token: its heads stand side by side in the product, so that what
it reads there or writes back is one run. Values are copied, so the product is dropped. Computed in
float32, rounded once. Operations of torch's library, as in `swiglu_triton`.

Keys and values may be written once for each query head, and their gradients added up on the way
back: for attention whose own way of doing that costs more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from llm_core.kernels.largest_triton import keep_largest, magnitude

# B batch · T tokens · N tokens of all rows · G key/value heads · H heads: of a group in GH, all in
# TH · D width of a head. In the product stand, for each key/value head, its `group` query heads,
# the key, the value (llm_core.model.fused). `copies` of each key and value are made: 1, or as many
# as there are query heads in the group.

HEADS = 32
"""Of a token, that a program of four warps works on: 32 numbers a thread at a width of 128."""


@triton.jit
def _places(group, width, heads, HEADS: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """(place in the product, in queries, key/value head, part of its group, which exist)."""
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    channel = tl.arange(0, HALF)[None, :]
    kv_head, part = head // (group + 2), head % (group + 2)
    there = (head < heads) & (channel < width // 2)
    return head * width + channel, (kv_head * group + part) * width + channel, kv_head, part, there


@triton.jit
def _angles(cos, sin, token, period, width, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.arange(0, HALF)[None, :]
    # Sines of first halves carry the sign of their partner, so those of second halves are the plain
    # ones.
    place = (token % period) * width + channel
    there = channel < width // 2
    return tl.load(cos + place, mask=there, other=0), tl.load(
        sin + place + width // 2, mask=there, other=0
    )


@triton.jit
def split_forward(  # type: ignore[no-untyped-def]
    qkv, cos, sin, q, k, v, period, group, copies, width, heads,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place, q_place, kv_head, part, there = _places(group, width, heads, HEADS, HALF)
    half, kv_heads = width // 2, heads // (group + 2)
    first = tl.load(qkv + token * heads * width + place, mask=there, other=0).to(tl.float32)
    second = tl.load(qkv + token * heads * width + place + half, mask=there, other=0).to(tl.float32)
    c, s = _angles(cos, sin, token, period, width, HALF)
    turned = there & (part <= group)
    one = tl.where(turned, first * c - second * s, first)
    other = tl.where(turned, second * c + first * s, second)
    one, other = one.to(q.dtype.element_ty), other.to(q.dtype.element_ty)
    is_q, is_k, is_v = there & (part < group), there & (part == group), there & (part > group)
    tl.store(q + token * kv_heads * group * width + q_place, one, mask=is_q)
    tl.store(q + token * kv_heads * group * width + q_place + half, other, mask=is_q)
    kv_place = ((token * kv_heads + kv_head) * copies) * width + tl.arange(0, HALF)[None, :]
    for _ in range(copies):
        tl.store(k + kv_place, one, mask=is_k)
        tl.store(k + kv_place + half, other, mask=is_k)
        tl.store(v + kv_place, one, mask=is_v)
        tl.store(v + kv_place + half, other, mask=is_v)
        kv_place += width


@triton.jit
def split_backward(  # type: ignore[no-untyped-def]
    dq, dk, dv, cos, sin, out, largest, period, group, copies, width, heads,
    HEADS: tl.constexpr, HALF: tl.constexpr, MEASURES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place, q_place, kv_head, part, there = _places(group, width, heads, HEADS, HALF)
    half, kv_heads = width // 2, heads // (group + 2)
    is_q, is_k, is_v = there & (part < group), there & (part == group), there & (part > group)
    q_place += token * kv_heads * group * width
    kv_place = ((token * kv_heads + kv_head) * copies) * width + tl.arange(0, HALF)[None, :]
    # Each place is in one of the three; the others give zeros without a read.
    first = tl.load(dq + q_place, mask=is_q, other=0).to(tl.float32)
    second = tl.load(dq + q_place + half, mask=is_q, other=0).to(tl.float32)
    for _ in range(copies):
        first += tl.load(dk + kv_place, mask=is_k, other=0).to(tl.float32)
        first += tl.load(dv + kv_place, mask=is_v, other=0).to(tl.float32)
        second += tl.load(dk + kv_place + half, mask=is_k, other=0).to(tl.float32)
        second += tl.load(dv + kv_place + half, mask=is_v, other=0).to(tl.float32)
        kv_place += width
    c, s = _angles(cos, sin, token, period, width, HALF)
    turned = there & (part <= group)
    one = tl.where(turned, first * c + second * s, first)
    other = tl.where(turned, second * c - first * s, second)
    one, other = one.to(out.dtype.element_ty), other.to(out.dtype.element_ty)
    tl.store(out + token * heads * width + place, one, mask=there)
    tl.store(out + token * heads * width + place + half, other, mask=there)
    if MEASURES:
        # What is not there was given zeros, which turn into zeros.
        keep_largest(largest, tl.maximum(magnitude(one), magnitude(other)))


@library.custom_op(
    "llm_core::split_heads",
    mutates_args=(),
    schema="(Tensor qkv, Tensor cos, Tensor sin, int copies) -> (Tensor, Tensor, Tensor)",
)
def split(qkv: Tensor, cos: Tensor, sin: Tensor, copies: int) -> tuple[Tensor, Tensor, Tensor]:
    """qkv_BTGHD, tables_B1TD (or one row for all) → q_BTHD and k_BTGD turned, and v_BTGD."""
    parts = _shapes(qkv, cos, sin, copies)
    inputs = (tensor.contiguous() for tensor in (qkv, cos, sin))
    _launch(split_forward, qkv.shape, copies, cos, (*inputs, *parts))
    return parts


@library.custom_op(
    "llm_core::split_heads_backward",
    mutates_args=(),
    schema="(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin, int copies) -> Tensor",
)
def gradient(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor, copies: int) -> Tensor:
    """Of qkv_BTGHD."""
    out = _shape_of_gradient(dq, dk, dv, cos, sin, copies)
    inputs = (tensor.contiguous() for tensor in (dq, dk, dv, cos, sin))
    _launch(split_backward, out.shape, copies, cos, (*inputs, out, out), MEASURES=False)
    return out


@library.custom_op(
    "llm_core::split_heads_backward_measured",
    mutates_args=(),
    schema=(
        "(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin, int copies) -> (Tensor, Tensor)"
    ),
)
def gradient_measured(
    dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor, copies: int
) -> tuple[Tensor, Tensor]:
    """(as `gradient`, bits of its largest magnitude in each program)."""
    out, largest = _shapes_measured(dq, dk, dv, cos, sin, copies)
    inputs = (tensor.contiguous() for tensor in (dq, dk, dv, cos, sin))
    _launch(split_backward, out.shape, copies, cos, (*inputs, out, largest), MEASURES=True)
    return out, largest


@split.register_fake
def _shapes(qkv: Tensor, cos: Tensor, sin: Tensor, copies: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, tokens, kv_heads, heads, width = qkv.shape
    q = qkv.new_empty(batch, tokens, kv_heads * (heads - 2), width)
    k, v = (qkv.new_empty(batch, tokens, kv_heads * copies, width) for _ in range(2))
    return q, k, v


@gradient.register_fake
def _shape_of_gradient(
    dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor, copies: int
) -> Tensor:
    batch, tokens, num_copies, width = dk.shape
    kv_heads = num_copies // copies
    return dk.new_empty(batch, tokens, kv_heads, dq.shape[2] // kv_heads + 2, width)


@gradient_measured.register_fake
def _shapes_measured(
    dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor, copies: int
) -> tuple[Tensor, Tensor]:
    out = _shape_of_gradient(dq, dk, dv, cos, sin, copies)
    batch, tokens, kv_heads, group, _ = out.shape
    _, programs = _heads_of_a_program(kv_heads * group)
    return out, out.new_empty(batch * tokens * programs, dtype=torch.int32)


def _keep(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    ctx.save_for_backward(inputs[1], inputs[2])
    ctx.copies = inputs[3]


def _go_back(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None, None, None]:
    return gradient(dq, dk, dv, *ctx.saved_tensors, ctx.copies), None, None, None


split.register_autograd(_go_back, setup_context=_keep)


def split_heads(qkv_BTGHD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """As Attention without kernels, for heads that are turned and not normed."""
    return in_order_of_heads(split(qkv_BTGHD, *rope, 1))


def split_heads_with_own_keys(
    qkv_BTGHD: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with a key and a value for each query head: k_BHTD, v_BHTD."""
    return in_order_of_heads(split(qkv_BTGHD, *rope, qkv_BTGHD.shape[3] - 2))


def in_order_of_heads(parts_BTHD: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    q_BHTD, k_BHTD, v_BHTD = (part.transpose(1, 2) for part in parts_BTHD)
    return q_BHTD, k_BHTD, v_BHTD


def _heads_of_a_program(heads: int) -> tuple[int, int]:
    """(heads that a program works on, programs of a token)."""
    block: int = min(HEADS, triton.next_power_of_2(heads))
    return block, triton.cdiv(heads, block)


def _launch(
    kernel: Any,
    shape: torch.Size,
    copies: int,
    cos: Tensor,
    tensors: tuple[Tensor, ...],
    **constants: bool,
) -> None:
    batch, tokens, kv_heads, group, width = shape
    # Tokens after which the tables repeat: those of one row where all rows share them.
    heads, period = kv_heads * group, cos.shape[0] * cos.shape[2]
    block, programs = _heads_of_a_program(heads)
    if batch * tokens:
        half = max(1, triton.next_power_of_2(width // 2))
        kernel[(batch * tokens, programs)](
            *tensors, period, group - 2, copies, width, heads, HEADS=block, HALF=half, **constants
        )

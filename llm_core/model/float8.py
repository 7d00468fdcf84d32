"""Products of linear layers in 8 bits: forward in E4M3, gradients in E5M2 (Micikevicius et al.,
2022), a scale for each tensor.

Hopper GPUs multiply 8-bit numbers twice as fast as 16-bit ones. Each operand is divided by a power
of two that its largest magnitude asks for, measured anew in every product, so that nothing
overflows and no history is kept; sums are taken in float32, and results leave in the dtype of what
they belong to: activations in bfloat16, gradients of weights in that of the weights. Inputs are
kept for backward in 8 bits, half the memory of bfloat16. Cost: a pass over each operand for its
largest value, one to round it, and transposed copies for backward, since these units multiply rows
by rows only; compile the model (`train.compile`), or these passes cost more than they save. With
train.kernels=triton rounding and transposing are one pass.

For the linear layers of blocks. Left out: embedding and head, which lose most by rounding; scales
for rows or blocks of a tensor, which are finer and, at these sizes, slower; sums of gradients
between processes in 8 bits.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from llm_core.compat import scaled_product
from llm_core.config import ConfigError
from llm_core.kernels.float8 import GRADIENTS, VALUES, Quantize, quantize
from llm_core.model.config import ONE_PASS_KERNELS
from llm_core.model.feed_forward import SwiGLU
from llm_core.model.transformer import Transformer


# N tokens · D inputs · F outputs, of a feed-forward its inner width
def apply_float8(
    model: Transformer,
    device: torch.device,
    kernels: str = "torch",
    joins_gates: bool = True,
) -> None:
    """Let the linear layers of every block of this process multiply in 8 bits, rounded by
    `train.kernels`.

    joins_gates: with our kernels, compute SwiGLU and the products around it as one operation, whose
    gates find the largest values too. Raises ConfigError where the device lacks 8-bit products.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise ConfigError(
            "train.float8 (true) needs a GPU with 8-bit products (Ada, Hopper), this is"
            f" {torch.cuda.get_device_name(device)}"
        )
    rounds: Quantize = quantize
    if kernels in ONE_PASS_KERNELS:
        from llm_core.kernels import float8_triton

        rounds = float8_triton.quantize
    for block in model.own_blocks:
        for owner in list(block.modules()):
            for name, layer in list(owner.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(owner, name, Float8Linear(layer, rounds))
        if kernels in ONE_PASS_KERNELS and joins_gates and is_joined(block.ffn):
            block.ffn.own_way = feed_forward


def is_joined(ffn: nn.Module) -> bool:
    """Whether `feed_forward` computes this layer: a SwiGLU without biases."""
    return isinstance(ffn, SwiGLU) and ffn.gate_up.bias is None and ffn.down.bias is None


class Float8Linear(nn.Module):
    """A linear layer that multiplies in 8 bits, over the weights of a plain one."""

    def __init__(self, layer: nn.Linear, quantize: Quantize = quantize) -> None:
        super().__init__()
        self.weight, self.bias, self.quantize = layer.weight, layer.bias, quantize

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] → [..., F] in bfloat16."""
        y_NF = cast(Tensor, _Product.apply(x.flatten(0, -2), self.weight, self.quantize))
        if self.bias is not None:
            y_NF = y_NF + self.bias.to(y_NF.dtype)
        return y_NF.unflatten(0, x.shape[:-1])


class _Product(torch.autograd.Function):
    """x_ND, weight_FD → x weightᵀ, bfloat16."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_FD: Tensor, to_8_bits: Quantize) -> Tensor:
        x8_ND, x8_DN, x_scale = to_8_bits(x_ND, VALUES)
        weight8_FD, weight8_DF, weight_scale = to_8_bits(weight_FD, VALUES)
        ctx.save_for_backward(x8_DN, x_scale, weight8_DF, weight_scale)
        ctx.dtypes, ctx.to_8_bits = (x_ND.dtype, weight_FD.dtype), to_8_bits
        # Sums that are kept short are good enough here, not for gradients (as in NVIDIA's
        # Transformer Engine).
        return _multiply(
            x8_ND, weight8_FD, x_scale, weight_scale, torch.bfloat16, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x8_DN, x_scale, weight8_DF, weight_scale = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        dy8_NF, dy8_FN, dy_scale = ctx.to_8_bits(gradients[0], GRADIENTS)
        # Frozen weights, or inputs without gradient, save a product.
        dx_ND = dweight_FD = None
        if ctx.needs_input_grad[0]:
            dx_ND = _multiply(dy8_NF, weight8_DF, dy_scale, weight_scale, x_dtype)
        if ctx.needs_input_grad[1]:
            dweight_FD = _multiply(dy8_FN, x8_DN, dy_scale, x_scale, weight_dtype)
        return dx_ND, dweight_FD, None


class _FeedForward(torch.autograd.Function):
    """`_Product`, SwiGLU and `_Product`, to the bit. SwiGLU also reports the largest of its
    numbers, which saves a pass over them."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        into_2FD: Tensor,
        down_DF: Tensor,
        block: int,
        to_8_bits: Quantize,
    ) -> Tensor:
        from llm_core.kernels import swiglu_triton
        from llm_core.kernels.largest_triton import largest_of

        x8_ND, x8_DN, x_scale = to_8_bits(x_ND, VALUES)
        into8_2FD, into8_D2F, into_scale = to_8_bits(into_2FD, VALUES)
        down8_DF, down8_FD, down_scale = to_8_bits(down_DF, VALUES)
        gate_up_N2F = _multiply(
            x8_ND, into8_2FD, x_scale, into_scale, torch.bfloat16, use_fast_accum=True
        )
        gated_NF, parts = swiglu_triton.gated_measured(gate_up_N2F, block)
        gated8_NF, gated8_FN, gated_scale = to_8_bits(gated_NF, VALUES, largest_of(parts))
        ctx.save_for_backward(
            x8_DN, x_scale, into8_D2F, into_scale, gate_up_N2F,
            gated8_FN, gated_scale, down8_FD, down_scale,
        )  # fmt: skip
        ctx.dtypes = x_ND.dtype, into_2FD.dtype, down_DF.dtype
        ctx.block, ctx.to_8_bits = block, to_8_bits
        return _multiply(
            gated8_NF, down8_DF, gated_scale, down_scale, torch.bfloat16, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from llm_core.kernels import swiglu_triton
        from llm_core.kernels.largest_triton import largest_of

        (
            x8_DN, x_scale, into8_D2F, into_scale, gate_up_N2F,
            gated8_FN, gated_scale, down8_FD, down_scale,
        ) = ctx.saved_tensors  # fmt: skip
        x_dtype, into_dtype, down_dtype = ctx.dtypes
        dy8_ND, dy8_DN, dy_scale = ctx.to_8_bits(gradients[0], GRADIENTS)
        dgated_NF = _multiply(dy8_ND, down8_FD, dy_scale, down_scale, torch.bfloat16)
        ddown_DF = _multiply(dy8_DN, gated8_FN, dy_scale, gated_scale, down_dtype)
        dinto_N2F, parts = swiglu_triton.gradient_measured(gate_up_N2F, dgated_NF, ctx.block)
        dinto8_N2F, dinto8_2FN, dinto_scale = ctx.to_8_bits(dinto_N2F, GRADIENTS, largest_of(parts))
        dx_ND = _multiply(dinto8_N2F, into8_D2F, dinto_scale, into_scale, x_dtype)
        dinto_2FD = _multiply(dinto8_2FN, x8_DN, dinto_scale, x_scale, into_dtype)
        return dx_ND, dinto_2FD, ddown_DF, None, None


class _SplitProduct(torch.autograd.Function):
    """As `_Product` and `rope_triton.split` of its result, to the bit; the way back says how large
    the gradient between them is.

    copies: of each key and value, as there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_FD: Tensor,
        cos: Tensor,
        sin: Tensor,
        shape_BTGHD: tuple[int, ...],
        copies: int,
        to_8_bits: Quantize,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from llm_core.kernels import rope_triton

        x8_ND, x8_DN, x_scale = to_8_bits(x_ND, VALUES)
        weight8_FD, weight8_DF, weight_scale = to_8_bits(weight_FD, VALUES)
        ctx.save_for_backward(x8_DN, x_scale, weight8_DF, weight_scale, cos, sin)
        ctx.dtypes = x_ND.dtype, weight_FD.dtype
        ctx.copies, ctx.to_8_bits = copies, to_8_bits
        qkv_NF = _multiply(
            x8_ND, weight8_FD, x_scale, weight_scale, torch.bfloat16, use_fast_accum=True
        )
        return rope_triton.split(qkv_NF.view(shape_BTGHD), cos, sin, copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from llm_core.kernels import rope_triton
        from llm_core.kernels.largest_triton import largest_of

        x8_DN, x_scale, weight8_DF, weight_scale, cos, sin = ctx.saved_tensors
        dqkv_BTGHD, parts = rope_triton.gradient_measured(*gradients, cos, sin, ctx.copies)
        dqkv_NF = dqkv_BTGHD.flatten(2).flatten(0, 1)
        dy8_NF, dy8_FN, dy_scale = ctx.to_8_bits(dqkv_NF, GRADIENTS, largest_of(parts))
        dx_ND = _multiply(dy8_NF, weight8_DF, dy_scale, weight_scale, ctx.dtypes[0])
        dweight_FD = _multiply(dy8_FN, x8_DN, dy_scale, x_scale, ctx.dtypes[1])
        return dx_ND, dweight_FD, None, None, None, None, None


def split_product(
    attention: Any, x_BTD: Tensor, rope: tuple[Tensor, Tensor], own_keys: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Turned queries and keys, and values, of an attention with an 8-bit layer without a bias.

    own_keys: with a key and a value for each query head.
    """
    from llm_core.kernels import rope_triton

    layer, group = attention.qkv, attention.group_size
    shape = *x_BTD.shape[:2], -1, group + 2, attention.head_dim
    parts = _SplitProduct.apply(
        x_BTD.flatten(0, 1), layer.weight, *rope, shape, group if own_keys else 1, layer.quantize
    )
    return rope_triton.in_order_of_heads(cast(tuple[Tensor, Tensor, Tensor], parts))


def feed_forward(ffn: Any, x_BTD: Tensor) -> Tensor:
    """down(silu(gate) * up) of a feed-forward with 8-bit layers and no biases."""
    into, down = ffn.gate_up, ffn.down
    y_ND = cast(
        Tensor,
        _FeedForward.apply(
            x_BTD.flatten(0, -2), into.weight, down.weight, ffn.block, into.quantize
        ),
    )
    return y_ND.unflatten(0, x_BTD.shape[:-1])


def _multiply(
    a8_IK: Tensor,
    b8_JK: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    dtype: torch.dtype,
    use_fast_accum: bool = False,
) -> Tensor:
    """a bᵀ [I, J] of rows that lie in one piece each."""
    return scaled_product(
        a8_IK, b8_JK.t(), a_scale, b_scale, out_dtype=dtype, use_fast_accum=use_fast_accum
    )

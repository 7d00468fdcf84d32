"""A SwiGLU feed-forward whose products compute what stands between them, by the package
quack-kernels.

Gates work on the numbers of a product while they are still in the registers of the program that
summed them up (a fused epilogue): forward reads nothing again of what it writes, and backward
neither writes nor reads the gradient of silu(gate) * up. That itself is not kept for the gradient
of the last weight: backward's product writes it again on the way.

The package takes gate and up as neighbours, channel by channel, and weights here stand in blocks
(llm_core.model.fused); the cast of a weight to 16 bits, needed anyhow, brings them into that order,
and the cast of its gradient back.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, library

from llm_core.kernels.packages import trial

# N tokens · D model width · F inner width, 2F with gate and up as neighbours


@functools.cache
def _products(hopper: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(gate and up with gates behind, gradient of the last product with gates behind)."""
    interface: Any = importlib.import_module("quack.gemm_interface")
    options: dict[str, Any] = {"activation": "swiglu", "tuned": False}
    if not hopper:
        return partial(interface.gemm_act, **options), partial(interface.gemm_dact, **options)
    # Two groups of warps, of which one multiplies while the other computes gates and writes: the
    # fastest of five and of eight ways on an H200 at 32,768 x 2,048 x 16,384, where those that the
    # package would take are a tenth and more behind.
    config: Any = importlib.import_module("quack.gemm_config").GemmConfig
    wide, narrow = (
        config(tile_m=128, tile_n=tile, pingpong=True, is_dynamic_persistent=False)
        for tile in (192, 128)
    )
    return partial(interface.gemm_act, config=wide, **options), partial(
        interface.gemm_dact, config=narrow, **options
    )


def _products_on(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return _products(device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9)


def check(device: torch.device, dim: int, ffn_dim: int, dtype: torch.dtype) -> None:
    """Run both products once. Raises ConfigError where they do not run at these widths here."""
    x_ND, dy_ND = (torch.zeros(128, dim, dtype=dtype, device=device) for _ in range(2))
    gate_up_2FD, down_DF = (
        torch.zeros(shape, dtype=dtype, device=device)
        for shape in ((2 * ffn_dim, dim), (dim, ffn_dim))
    )
    needs = (
        "train.kernels (quack) need a GPU of Hopper or later and the package quack-kernels, at"
        f" widths of {dim} and {ffn_dim}"
    )
    with trial(device, needs, "pip install 'textmill[quack]', or use triton or torch"):
        gate_up_N2F, _ = _forward(x_ND, gate_up_2FD)
        _backward(dy_ND, down_DF, gate_up_N2F)


@library.custom_op(
    "llm_core::swiglu_product",
    mutates_args=(),
    schema="(Tensor x, Tensor weight) -> (Tensor, Tensor)",
)
def _forward(x_ND: Tensor, gate_up_2FD: Tensor) -> tuple[Tensor, Tensor]:
    """(gate_up_N2F, silu(gate) * up)."""
    gate_up_N2F, gated_NF = _shapes(x_ND, gate_up_2FD)
    _products_on(x_ND.device)[0](
        x_ND, gate_up_2FD.t(), preact_out=gate_up_N2F, postact_out=gated_NF
    )
    return gate_up_N2F, gated_NF


@library.custom_op(
    "llm_core::swiglu_product_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor weight, Tensor gate_up) -> (Tensor, Tensor)",
)
def _backward(dy_ND: Tensor, down_DF: Tensor, gate_up_N2F: Tensor) -> tuple[Tensor, Tensor]:
    """(gradient of gate_up_N2F, silu(gate) * up)."""
    grad_N2F, gated_NF = _shapes_of_gradient(dy_ND, down_DF, gate_up_N2F)
    _products_on(dy_ND.device)[1](
        dy_ND, down_DF, gate_up_N2F, dx_out=grad_N2F, postact_out=gated_NF
    )
    return grad_N2F, gated_NF


@_forward.register_fake
def _shapes(x_ND: Tensor, gate_up_2FD: Tensor) -> tuple[Tensor, Tensor]:
    tokens, channels = len(x_ND), len(gate_up_2FD)
    return x_ND.new_empty(tokens, channels), x_ND.new_empty(tokens, channels // 2)


@_backward.register_fake
def _shapes_of_gradient(
    dy_ND: Tensor, down_DF: Tensor, gate_up_N2F: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate_up_N2F), dy_ND.new_empty(len(dy_ND), down_DF.shape[1])


class _FeedForward(torch.autograd.Function):
    """x_ND and both weights in 16 bits, gate and up as neighbours → y_ND."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, gate_up_2FD: Tensor, down_DF: Tensor) -> Tensor:
        gate_up_N2F, gated_NF = _forward(x_ND, gate_up_2FD)
        ctx.save_for_backward(x_ND, gate_up_2FD, down_DF, gate_up_N2F)
        return gated_NF @ down_DF.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_ND, gate_up_2FD, down_DF, gate_up_N2F = ctx.saved_tensors
        dy_ND = gradients[0].contiguous()
        grad_N2F, gated_NF = _backward(dy_ND, down_DF, gate_up_N2F)
        return grad_N2F @ gate_up_2FD, grad_N2F.t() @ x_ND, dy_ND.t() @ gated_NF


def feed_forward(ffn: Any, x_BTD: Tensor) -> Tensor:
    """down(silu(gate) * up) as autocast would compute it; rows of gate_up [2F, D] in blocks."""
    gate_up, down, block = ffn.gate_up.weight, ffn.down.weight, ffn.block
    device = x_BTD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else gate_up.dtype
    neighbours_2FD = gate_up.unflatten(0, (-1, 2, block)).transpose(1, 2).flatten(0, 2).to(dtype)
    y_ND = cast(
        Tensor, _FeedForward.apply(x_BTD.flatten(0, -2).to(dtype), neighbours_2FD, down.to(dtype))
    )
    return y_ND.unflatten(0, x_BTD.shape[:-1])

"""Root-mean-square norm (Zhang and Sennrich, 2019): scale to unit mean square, then one weight per
channel; Gemma's, whose weights are offsets from one; or GPT-2's norm.

Computed in float32 or better, given back in the dtype of the input. CUDA's autocast would give
float32, of which every projection behind a norm makes a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from llm_core.model.config import ModelConfig

AddNorm = Callable[[Tensor, Tensor, nn.Module], tuple[Tensor, Tensor]]
"""(x_BTD, delta_BTD, norm) → (their sum, its norm)."""

PRECISE = (torch.float32, torch.float64)


def make_norm(config: ModelConfig) -> nn.Module:
    """The residual stream's norm: RMSNorm, with an offset or not, or LayerNorm (Ba et al., 2016)
    with weight and bias."""
    if config.norm == "layer":
        return LayerNorm(config.dim, config.norm_eps)
    if config.norm == "offset_rms":
        return OffsetRMSNorm(config.dim, config.norm_eps)
    return RMSNorm(config.dim, config.norm_eps)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    # Turning off what is off costs as much as a small norm; meta tensors, by which models are
    # counted, cannot be asked.
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def add_then_norm(x_BTD: Tensor, delta_BTD: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """(x + delta, its norm): what stands between the halves of a block."""
    total_BTD = x_BTD + delta_BTD
    return total_BTD, norm(total_BTD)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x_BTD: Tensor) -> Tensor:
        # Kernels want weights in the dtype of the input; under FSDP they come so.
        weight_D = self.weight.to(x_BTD.dtype)
        with _without_autocast(x_BTD.device):
            if _is_norm_of_many_operations(x_BTD):
                return cast(Tensor, _RMSNorm.apply(x_BTD, weight_D, self.eps))
            return F.rms_norm(x_BTD, weight_D.shape, weight_D, self.eps)


class OffsetRMSNorm(nn.Module):
    """Scales by one more than its weights, which begin as zeros (Gemma). One is added in float32 or
    better: in 16 bits small weights would be lost beside it."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x_BTD: Tensor) -> Tensor:
        precise = torch.promote_types(x_BTD.dtype, torch.float32)
        with _without_autocast(x_BTD.device):
            x, scale_D = x_BTD.to(precise), 1 + self.weight.to(precise)
            if _is_norm_of_many_operations(x):
                return cast(Tensor, _RMSNorm.apply(x, scale_D, self.eps)).to(x_BTD.dtype)
            return F.rms_norm(x, scale_D.shape, scale_D, self.eps).to(x_BTD.dtype)


def _is_norm_of_many_operations(x_BTD: Tensor) -> bool:
    # CPUs have no kernel of this norm: what torch runs there is a formula, and its backward the
    # rules of its operations.
    return (
        torch.is_grad_enabled()
        and x_BTD.device.type == "cpu"
        and x_BTD.dtype in PRECISE
        and not torch.compiler.is_compiling()
    )


class _RMSNorm(torch.autograd.Function):
    """The formula of F.rms_norm to the bit; its gradient takes half as many passes over memory."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        scale_BT1 = x_BTD.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        normed_BTD = x_BTD * scale_BT1
        ctx.save_for_backward(normed_BTD, scale_BT1, weight_D)
        return normed_BTD * weight_D

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normed_BTD, scale_BT1, weight_D = ctx.saved_tensors
        product_BTD = grads[0] * normed_BTD
        # What it was scaled to has no gradient along itself. Pipelines run backward under autocast,
        # whose products are short.
        with _without_autocast(product_BTD.device):
            along_BT1 = (product_BTD @ weight_D).div_(-len(weight_D))[..., None]
        grad_BTD = (grads[0] * weight_D).addcmul_(normed_BTD, along_BT1).mul_(scale_BT1)
        return grad_BTD, product_BTD.reshape(-1, len(weight_D)).sum(dim=0), None


class LayerNorm(nn.LayerNorm):
    def forward(self, x_BTD: Tensor) -> Tensor:
        weight, bias = self.weight.to(x_BTD.dtype), self.bias.to(x_BTD.dtype)
        with _without_autocast(x_BTD.device):
            return F.layer_norm(x_BTD, self.normalized_shape, weight, bias, self.eps)

"""Root-mean-square norm (Zhang and Sennrich, 2019): scale to unit mean square, then one weight per channel; or GPT-2's norm.

Computed in float32 or better, given back in the dtype of the input. CUDA's autocast would give float32, of which every projection
behind a norm makes a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.config import ModelConfig

AddNorm = Callable[[Tensor, Tensor, nn.Module], tuple[Tensor, Tensor]]
"""(x_BTD, delta_BTD, norm) → (their sum, its norm)."""


def make_norm(config: ModelConfig) -> nn.Module:
    """The norm of the residual stream: RMSNorm, or LayerNorm (Ba et al., 2016) with weight and bias."""
    if config.norm == "layer":
        return LayerNorm(config.dim, config.norm_eps)
    return RMSNorm(config.dim, config.norm_eps)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    # Turning off what is off costs as much as a small norm; meta tensors, by which models are counted, cannot be asked.
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
        with _without_autocast(x_BTD.device):
            return F.rms_norm(x_BTD, self.weight.shape, self.weight.to(x_BTD.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    def forward(self, x_BTD: Tensor) -> Tensor:
        weight, bias = self.weight.to(x_BTD.dtype), self.bias.to(x_BTD.dtype)
        with _without_autocast(x_BTD.device):
            return F.layer_norm(x_BTD, self.normalized_shape, weight, bias, self.eps)

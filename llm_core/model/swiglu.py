"""Who computes silu(gate) * up? torch, operation by operation, or kernels of our own, each one pass over memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.config import ConfigError

Gated = Callable[[Tensor, int], Tensor]
"""(gate_up [..., 2F], channels of a block) → [..., F]; channels of gate and up stand in blocks (llm_core.model.fused)."""


def gated(gate_up: Tensor, block: int) -> Tensor:
    gate, up = gate_up.unflatten(-1, (-1, 2, block)).unbind(-2)
    return (F.silu(gate) * up).flatten(-2)


def prepare_gated(kernels: str, device: torch.device) -> Gated:
    """The function that `train.kernels` asks for. Raises ConfigError where it is not to be had."""
    if kernels == "torch":
        return gated
    if device.type != "cuda":
        raise ConfigError(f"train.kernels ({kernels}) are for CUDA devices, this one is {device.type}; use torch")
    try:
        from llm_core.model import swiglu_triton
    except ImportError as error:
        raise ConfigError(f"train.kernels ({kernels}) need the package triton ({error}); install it, or use torch") from error
    return swiglu_triton.gated

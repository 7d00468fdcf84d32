"""Who computes what stands between the products of a block? torch, or kernels of our own, each one pass over memory."""

from __future__ import annotations

import torch

from llm_core.config import ConfigError
from llm_core.model.attention import SplitHeads
from llm_core.model.norm import AddNorm, RMSNorm
from llm_core.model.swiglu import Gated
from llm_core.model.transformer import Block, SwiGLU


def apply_kernels(blocks: list[Block], kernels: str, device: torch.device, own_keys: bool = False) -> None:
    """Give blocks the functions that `train.kernels` asks for. Raises ConfigError where they are not to be had.

    own_keys: attention gets a key and a value for each query head, where heads share them.
    """
    if kernels == "torch":
        return
    gated, add_then_norm, split_heads = triton_kernels(device, own_keys)
    for block in blocks:
        if isinstance(block.ffn, SwiGLU):
            block.ffn.gated = gated
        if isinstance(block.ffn_norm, RMSNorm):
            block.add_norm = add_then_norm
        if not block.attention.qk_norm:
            block.attention.split_heads = split_heads


def triton_kernels(device: torch.device, own_keys: bool = False) -> tuple[Gated, AddNorm, SplitHeads]:
    if device.type != "cuda":
        raise ConfigError(f"train.kernels (triton) are for CUDA devices, this one is {device.type}; use torch")
    try:
        from llm_core.model import norm_triton, rope_triton, swiglu_triton
    except ImportError as error:
        raise ConfigError(f"train.kernels (triton) need the package triton ({error}); install it, or use torch") from error
    split_heads = rope_triton.split_heads_with_own_keys if own_keys else rope_triton.split_heads
    return swiglu_triton.gated, norm_triton.add_then_norm, split_heads

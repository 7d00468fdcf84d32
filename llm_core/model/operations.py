"""Chooses what computes the operations between products: torch, or one-pass kernels of ours."""

from __future__ import annotations

import importlib
import os
from functools import partial

import torch

from llm_core.config import ConfigError
from llm_core.model.attention import SplitHeads
from llm_core.model.config import ONE_PASS_KERNELS, ModelConfig
from llm_core.model.experts.feed_forward import SparseFeedForward
from llm_core.model.feed_forward import Gated, SwiGLU
from llm_core.model.float8 import Float8Linear, split_product
from llm_core.model.norm import AddNorm, RMSNorm
from llm_core.model.precision import HALF_DTYPES
from llm_core.model.transformer import Block


def check_kernels(kernels: str, device: torch.device, config: ModelConfig, dtype: str) -> None:
    """Raises ConfigError where this device lacks `train.kernels` for this model and dtype."""
    if kernels not in ONE_PASS_KERNELS:
        return
    interpreted = kernels == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        raise ConfigError(
            f"train.kernels ({kernels}) are for CUDA devices, this one is {device.type}; use torch,"
            " or to try them slowly train.kernels=triton with TRITON_INTERPRET=1 in the"
            " environment"
        )
    try:
        importlib.import_module("triton")
    except ImportError as error:
        raise ConfigError(
            f"train.kernels ({kernels}) need the package triton ({error}); install it, or use torch"
        ) from error
    if kernels == "quack":
        from llm_core.kernels import swiglu_products

        swiglu_products.check(device, config.dim, config.ffn_dim, HALF_DTYPES[dtype])


def apply_kernels(blocks: list[Block], kernels: str, own_keys: bool = False) -> None:
    """Give blocks the functions of `train.kernels`, which were checked.

    own_keys: attention gets a key and a value for each query head, where two heads share one.
    """
    if kernels not in ONE_PASS_KERNELS:
        return
    gated, add_then_norm, split_heads = triton_kernels(own_keys)
    for block in blocks:
        if isinstance(block.ffn, SwiGLU):
            block.ffn.gated = gated
            if kernels == "quack":
                from llm_core.kernels.swiglu_products import feed_forward

                block.ffn.own_way = feed_forward
        if isinstance(block.ffn, SparseFeedForward):
            block.ffn.set_gated(gated)
        if isinstance(block.ffn_norm, RMSNorm):
            block.add_norm = add_then_norm
        if not block.attention.qk_norm:
            block.attention.own_split = split_heads
            qkv = block.attention.qkv
            if isinstance(qkv, Float8Linear) and qkv.bias is None:
                block.attention.own_product = partial(split_product, own_keys=own_keys)


def triton_kernels(own_keys: bool) -> tuple[Gated, AddNorm, SplitHeads]:
    from llm_core.kernels import norm_triton, rope_triton, swiglu_triton

    split_heads = rope_triton.split_heads_with_own_keys if own_keys else rope_triton.split_heads
    return swiglu_triton.gated, norm_triton.add_then_norm, split_heads

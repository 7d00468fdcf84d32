"""Causal attention by FlashAttention-4 (Dao et al., 2026), package flash-attn-4, which has kernels
for Hopper and Blackwell.

Called as the package offers it, not through the hook of torch's own flash attention, whose version
of the arguments must be that of the package. Operations of torch's library, so that compiled blocks
keep them in one graph and `memory.recompute` can name them. The package compiles a kernel at the
first call of each kind, some seconds, and keeps it on disk where
`FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library

from llm_core.kernels.packages import trial

# B rows · Q queries · K keys · H heads, G of keys and values · D width of a head

Heads = tuple[int, int, int]
"""How many of this process, how many of keys and values, and their width."""


@functools.cache
def _kernels() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(forward, backward), not public: an operation of torch needs the backward alone."""
    interface: Any = importlib.import_module("flash_attn.cute.interface")
    return interface._flash_attn_fwd, interface._flash_attn_bwd


def adds_up_keys_slowly(device: torch.device, heads: Heads) -> bool:
    """Whether backward is faster with keys and values that heads do not share.

    For Hopper it adds up gradients of shared ones in main memory. With two heads on a key that
    costs more than a second key does; with more heads on one, copies take more memory than that is
    worth.
    """
    pairs = heads[0] == 2 * heads[1] and device.type == "cuda"
    return pairs and torch.cuda.get_device_capability(device)[0] == 9


def check(device: torch.device, heads: Heads = (2, 1, 64)) -> None:
    """Run both passes once. Raises ConfigError where they do not run with these heads here."""
    num_heads, num_kv_heads, width = heads
    q_BQHD, k_BKGD = (
        torch.zeros(1, 128, n, width, dtype=torch.bfloat16, device=device)
        for n in (num_heads, num_kv_heads)
    )
    needs = (
        "attention backend (fa4) needs a GPU of Hopper or later and the package flash-attn-4, for"
        f" {num_heads} heads on {num_kv_heads} of {width} channels"
    )
    with trial(device, needs, "pip install 'textmill[fa4]', or use cudnn or sdpa"):
        mixed_BQHD, lse_BHQ = _forward(q_BQHD, k_BKGD, k_BKGD)
        _backward(q_BQHD, k_BKGD, k_BKGD, mixed_BQHD, mixed_BQHD, lse_BHQ)


@library.custom_op(
    "llm_core::flash4", mutates_args=(), schema="(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)"
)
def _forward(q_BQHD: Tensor, k_BKGD: Tensor, v_BKGD: Tensor) -> tuple[Tensor, Tensor]:
    """(mixed_BQHD, lse_BHQ in float32)."""
    mixed_BQHD, lse_BHQ = _kernels()[0](q_BQHD, k_BKGD, v_BKGD, causal=True, return_lse=True)[:2]
    return mixed_BQHD, lse_BHQ


@library.custom_op(
    "llm_core::flash4_backward",
    mutates_args=(),
    schema=(
        "(Tensor q, Tensor k, Tensor v, Tensor mixed, Tensor grad, Tensor lse) -> (Tensor, Tensor,"
        " Tensor)"
    ),
)
def _backward(
    q_BQHD: Tensor,
    k_BKGD: Tensor,
    v_BKGD: Tensor,
    mixed_BQHD: Tensor,
    grad_BQHD: Tensor,
    lse_BHQ: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    # In the order that compiled blocks are told of; left alone the package takes that of its
    # inputs.
    dq, dk, dv = _shapes_of_gradients(q_BQHD, k_BKGD, v_BKGD, mixed_BQHD, grad_BQHD, lse_BHQ)
    options = {"causal": True, "deterministic": torch.are_deterministic_algorithms_enabled()}
    _kernels()[1](
        q_BQHD, k_BKGD, v_BKGD, mixed_BQHD, grad_BQHD, lse_BHQ, dq=dq, dk=dk, dv=dv, **options
    )
    return dq, dk, dv


@_forward.register_fake
def _shapes(q_BQHD: Tensor, k_BKGD: Tensor, v_BKGD: Tensor) -> tuple[Tensor, Tensor]:
    batch, queries, heads, _ = q_BQHD.shape
    return q_BQHD.new_empty(*q_BQHD.shape[:-1], v_BKGD.shape[-1]), q_BQHD.new_empty(
        batch, heads, queries, dtype=torch.float32
    )


@_backward.register_fake
def _shapes_of_gradients(
    q_BQHD: Tensor,
    k_BKGD: Tensor,
    v_BKGD: Tensor,
    mixed_BQHD: Tensor,
    grad_BQHD: Tensor,
    lse_BHQ: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_BQHD, k_BKGD, v_BKGD)
    )
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    mixed_BQHD, lse_BHQ = output
    ctx.mark_non_differentiable(lse_BHQ)
    ctx.save_for_backward(*inputs, mixed_BQHD, lse_BHQ)


def _go_back(ctx: Any, grad_BQHD: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q_BQHD, k_BKGD, v_BKGD, mixed_BQHD, lse_BHQ = ctx.saved_tensors
    return _backward(q_BQHD, k_BKGD, v_BKGD, mixed_BQHD, grad_BQHD.contiguous(), lse_BHQ)


_forward.register_autograd(_go_back, setup_context=_keep)


def flash4(q_BHQD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor) -> Tensor:
    """mixed_BHQD of causal attention, of 16-bit numbers. Heads and tokens swap without a copy."""
    mixed_BQHD, _ = _forward(*(x.transpose(1, 2) for x in (q_BHQD, k_BGKD, v_BGKD)))
    return mixed_BQHD.transpose(1, 2)

"""softmax(q·k) v under a mask, by the kernel that is asked for: every one gives the answer of
`reference`, within rounding.

| backend | kernel | takes |
|---|---|---|
| sdpa | what torch picks; a mask that is more than causal is handed over dense | anything |
| reference | explicit scores, float32 or better | anything; memory of rows x heads x queries x keys |
| cudnn, flash | that kernel or an error | causal masks |
| fa3, fa4 | flash of Dao et al. in its newer packages, where they are installed | causal masks |
| varlen | flash over documents laid end to end | documents and windows, 16-bit numbers |
| flex | FlexAttention (Dong et al. 2024), compiled; blocks that a mask leaves empty cost nothing | anything |

All but the first two need a CUDA device. A kernel that cannot take the mask of a batch is refused
by ConfigError, never swapped for another. Left out: attention dropout, and scores bent by anything
but a mask.
"""  # noqa: E501

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.config import ConfigError
from llm_core.kernels import flash4
from llm_core.model.masks import AttentionMask, segment_bounds
from llm_core.private_folder import keep_compiled_code_private

# B rows · Q queries · K keys · H heads, of which keys and values may have fewer · D width of a head
# · N tokens of all rows

Backend = Literal["sdpa", "reference", "cudnn", "flash", "fa3", "fa4", "varlen", "flex"]

Mask: TypeAlias = AttentionMask | Tensor | None
"""A rule; or the allowed_B1QK themselves, as a cache knows them; or None: every key."""


def attend(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: Mask, backend: Backend = "sdpa"
) -> Tensor:
    """mixed_BHQD of the values that each query attends. Query heads of a group share one key and
    value head.

    Raises ConfigError where the backend does not take this mask.
    """
    if backend == "reference":
        return _reference(q_BHQD, k_BHKD, v_BHKD, mask)
    if backend == "flex" and isinstance(mask, AttentionMask):
        return _flex(q_BHQD, k_BHKD, v_BHKD, mask)
    if backend == "varlen" and isinstance(mask, AttentionMask):
        return _varlen(q_BHQD, k_BHKD, v_BHKD, mask)
    if backend in ("cudnn", "flash", "fa3", "fa4") and isinstance(mask, AttentionMask):
        if not mask.is_plainly_causal:
            raise _refusal(backend, mask, "causal rows of one document each")
        if backend == "fa4":
            return flash4.flash4(q_BHQD, k_BHKD, v_BHKD)
        kernel = torch.nn.attention.SDPBackend
        with torch.nn.attention.sdpa_kernel(
            kernel.CUDNN_ATTENTION if backend == "cudnn" else kernel.FLASH_ATTENTION
        ):
            return _sdpa(q_BHQD, k_BHKD, v_BHKD, mask)
    return _sdpa(q_BHQD, k_BHKD, v_BHKD, mask)


def prepare_backend(
    backend: str, device: torch.device, heads: flash4.Heads = (2, 1, 64)
) -> Backend:
    """The backend, ready for such heads on this device. Raises ConfigError where it is missing."""
    if backend not in get_args(Backend):
        raise ConfigError(
            f"attention backend ({backend}) must be one of {', '.join(get_args(Backend))}"
        )
    if device.type != "cuda" and backend not in ("sdpa", "reference"):
        raise ConfigError(
            f"attention backend ({backend}) runs on CUDA devices only, this one is {device.type};"
            " use sdpa"
        )
    if backend == "fa3":
        _activate_fa3(device)
    if backend == "fa4":
        flash4.check(device, heads)
    return cast(Backend, backend)


@functools.cache
def _activate_fa3(device: torch.device) -> None:
    """Let torch use the package for flash attention, and run both passes to see that it fits."""
    attention: Any = torch.nn.attention
    x_BHTD = torch.zeros(1, 1, 128, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
    try:
        attention.activate_flash_attention_impl("FA3")
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION), torch.enable_grad():
            mixed_BHTD = F.scaled_dot_product_attention(x_BHTD, x_BHTD, x_BHTD, is_causal=True)
            torch.autograd.grad(mixed_BHTD.sum(), x_BHTD)
    except (ImportError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"attention backend (fa3) is not installed or does not fit this torch ({error}); use"
            " sdpa"
        ) from error


def _sdpa(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: Mask) -> Tensor:
    causal = isinstance(mask, AttentionMask) and mask.is_plainly_causal
    allowed = None if causal else _dense(q_BHQD, k_BHKD, mask)
    gqa = q_BHQD.shape[1] != k_BHKD.shape[1]
    return F.scaled_dot_product_attention(
        q_BHQD, k_BHKD, v_BHKD, attn_mask=allowed, is_causal=causal, enable_gqa=gqa
    )


def _reference(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: Mask) -> Tensor:
    precise = torch.promote_types(q_BHQD.dtype, torch.float32)
    group = q_BHQD.shape[1] // k_BHKD.shape[1]
    q = q_BHQD.to(precise)
    k, v = (x.to(precise).repeat_interleave(group, dim=1) for x in (k_BHKD, v_BHKD))
    scores_BHQK = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    allowed = _dense(q_BHQD, k_BHKD, mask)
    if allowed is not None:
        scores_BHQK = scores_BHQK.masked_fill(~allowed, -math.inf)
    return (scores_BHQK.softmax(dim=-1) @ v).to(q_BHQD.dtype)


def _dense(q_BHQD: Tensor, k_BHKD: Tensor, mask: Mask) -> Tensor | None:
    if not isinstance(mask, AttentionMask):
        return mask
    return mask.dense(q_BHQD.shape[2], k_BHKD.shape[2], q_BHQD.device)


def _flex(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: AttentionMask) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask

    queries, keys = q_BHQD.shape[2], k_BHKD.shape[2]
    name = ("flex", queries, keys)
    if name not in mask.made:
        rows = None if mask.documents_BK is None else len(mask.documents_BK)
        mask.made[name] = create_block_mask(
            mask.rule(), rows, None, queries, keys, device=q_BHQD.device
        )
    gqa = q_BHQD.shape[1] != k_BHKD.shape[1]
    return cast(
        Tensor, _compiled_flex()(q_BHQD, k_BHKD, v_BHKD, block_mask=mask.made[name], enable_gqa=gqa)
    )


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    keep_compiled_code_private()
    return cast(Callable[..., Any], torch.compile(flex_attention))


def _varlen(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, mask: AttentionMask) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    if mask.columns_Q is not None or mask.pattern.sliding is None:
        raise _refusal("varlen", mask, "whole rows, with or without documents and a window")
    name = ("varlen", *q_BHQD.shape[::2])
    if name not in mask.made:
        # Waits for the device once per batch: how many documents there are decides a shape.
        documents_BT = mask.documents_BK
        if documents_BT is None:
            documents_BT = torch.zeros(
                len(q_BHQD), q_BHQD.shape[2], dtype=torch.int32, device=q_BHQD.device
            )
        mask.made[name] = segment_bounds(documents_BT)
    bounds = mask.made[name]
    batch, _, tokens, _ = q_BHQD.shape
    group = q_BHQD.shape[1] // k_BHKD.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k_BHKD, v_BHKD))
    q_NHD, k_NHD, v_NHD = (x.transpose(1, 2).flatten(0, 1) for x in (q_BHQD, k, v))
    reach = mask.pattern.window - 1 if mask.pattern.window else -1, 0
    mixed_NHD: Tensor = varlen_attn(
        q_NHD, k_NHD, v_NHD, bounds, bounds, tokens, tokens, window_size=reach
    )
    return mixed_NHD.unflatten(0, (batch, tokens)).transpose(1, 2)


def _refusal(backend: str, mask: AttentionMask, takes: str) -> ConfigError:
    documents = "with" if mask.documents_BK is not None else "without"
    return ConfigError(
        f"attention backend ({backend}) takes {takes}; this mask is {mask.pattern} {documents}"
        " documents; use sdpa or flex"
    )

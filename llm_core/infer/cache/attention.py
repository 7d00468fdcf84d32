"""Attends earlier keys and values of a cache, which are never expanded for grouped queries.

The last query is the last key (bottom-right causal). `is_causal` of torch's
scaled_dot_product_attention is top-left, which is another mask as soon as there are more keys than
queries; it serves where both are the same tokens. The query heads that share a key head go where
that kernel expects queries: one pass over the keys serves them all. Where a mask is needed it is
one of some queries, so memory grows with the keys and not with their square.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from llm_core.model.sparse.patterns import ALL, Pattern, attended

# B rows · H query heads · G key/value heads · R query heads that share one · Q queries of this pass
# K keys, those of this pass included · D width of a head

MASKED_QUERIES = 128
"""Queries that share one mask: large enough for full tiles, small beside the keys."""


PLAIN_KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def any_length() -> contextlib.AbstractContextManager[None]:
    """Within, torch attends by kernels that take every length at once: those of cuDNN, which it
    prefers on new GPUs, are planned anew for each, which takes longer than a pass."""
    return sdpa_kernel(PLAIN_KERNELS)


def attend_keys(q_BHQD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor, pattern: Pattern = ALL) -> Tensor:
    """mixed_BHQD of rows that have all K keys; of a sliding window, those that it needs."""
    queries, keys = q_BHQD.shape[2], k_BGKD.shape[2]
    window = pattern.sliding
    if window is not None and not 0 < window < keys:
        if queries == 1:
            return attend_masked(q_BHQD, k_BGKD, v_BGKD, None)
        if queries == keys:
            return _causal(q_BHQD, k_BGKD, v_BGKD)
    mixed = []
    for begin in range(0, queries, MASKED_QUERIES):
        end = min(begin + MASKED_QUERIES, queries)
        last = keys - queries + end
        first = max(0, last - (end - begin) + 1 - window) if window else 0
        key_K = torch.arange(first, last, device=q_BHQD.device)
        place_Q1 = key_K[-(end - begin) :, None]
        allowed_QK = (key_K <= place_Q1) & named(pattern, place_Q1, key_K)
        part = k_BGKD[:, :, first:last], v_BGKD[:, :, first:last]
        mixed.append(attend_masked(q_BHQD[:, :, begin:end], *part, allowed_QK))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)


def attend_ragged(
    q_BHQD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor, lengths_B: Tensor, pattern: Pattern = ALL
) -> Tensor:
    """mixed_BHQD of rows of which row b has lengths_B[b] keys, the last Q for these queries."""
    allowed_B1QK = ragged_mask(lengths_B, q_BHQD.shape[2], k_BGKD.shape[2], pattern)
    return attend_masked(q_BHQD, k_BGKD, v_BGKD, allowed_B1QK)


def ragged_mask(lengths_B: Tensor, queries: int, keys: int, pattern: Pattern = ALL) -> Tensor:
    """allowed_B1QK of `attend_ragged`."""
    key_K = torch.arange(keys, device=lengths_B.device)
    place_BQ = lengths_B[:, None] - queries + torch.arange(queries, device=lengths_B.device)
    allowed_BQK = key_K <= place_BQ[..., None]
    return (allowed_BQK & named(pattern, place_BQ[..., None], key_K))[:, None]


def named(pattern: Pattern, place_Q1: Tensor, key_K: Tensor) -> Tensor | bool:
    """Whether the pattern names a key, by places that begin with the sequence; a sliding window
    goes by their distance, whatever they begin with."""
    found: Tensor | None = attended(pattern, place_Q1, key_K)
    return True if found is None else found


def attend_masked(q_BHQD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor, allowed: Tensor | None) -> Tensor:
    """mixed_BHQD. allowed: QK or B1QK; None: everything."""
    groups, queries = k_BGKD.shape[1], q_BHQD.shape[2]
    q_BGRQD = q_BHQD.unflatten(1, (groups, -1))
    heads = q_BGRQD.shape[2]
    if heads == 1:
        return F.scaled_dot_product_attention(q_BHQD, k_BGKD, v_BGKD, attn_mask=allowed)
    if allowed is not None and queries > 1:
        allowed = allowed.repeat(*(1,) * (allowed.dim() - 2), heads, 1)
    mixed_BGND = F.scaled_dot_product_attention(
        q_BGRQD.flatten(2, 3), k_BGKD, v_BGKD, attn_mask=allowed
    )
    return mixed_BGND.unflatten(2, (heads, queries)).flatten(1, 2)


def _causal(q_BHQD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor) -> Tensor:
    if q_BHQD.is_cuda:
        # Its flash kernels take grouped heads as they are.
        return F.scaled_dot_product_attention(
            q_BHQD, k_BGKD, v_BGKD, is_causal=True, enable_gqa=q_BHQD.shape[1] != k_BGKD.shape[1]
        )
    q_BGRQD = q_BHQD.unflatten(1, (k_BGKD.shape[1], -1))
    mixed = [
        F.scaled_dot_product_attention(q_BGQD, k_BGKD, v_BGKD, is_causal=True)
        for q_BGQD in q_BGRQD.unbind(2)
    ]
    return torch.stack(mixed, dim=2).flatten(1, 2)

"""Positions of encoder–decoder models: buckets of relative distances (T5) and sinusoids."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from llm_core.seq2seq.config import Seq2SeqConfig


# B rows · T tokens · H heads · Q queries · K keys · D model width
def buckets(distances: Tensor, both_ways: bool, num_buckets: int, max_distance: int) -> Tensor:
    """int64 bucket of each distance, key position minus query position (Raffel et al., 2020,
    section 2.1).

    both_ways: later keys have the upper half of the buckets; else they share that of distance 0.
    Near distances have a bucket each, those up to max_distance share by logarithm, in float32 as
    published models do.
    """
    if both_ways:
        num_buckets //= 2
        first = (distances > 0) * num_buckets
        distances = distances.abs()
    else:
        first = torch.zeros_like(distances)
        distances = (-distances).clamp(min=0)
    num_exact = num_buckets // 2
    # Below num_exact, where the logarithm is not used, it need only be finite.
    ratios = torch.log(distances.clamp(min=num_exact).float() / num_exact)
    ratios = ratios / math.log(max_distance / num_exact) * (num_buckets - num_exact)
    far = (num_exact + ratios.long()).clamp(max=num_buckets - 1)
    return first + torch.where(distances < num_exact, distances, far)


class RelativeBias(nn.Module):
    """What each head adds to a score for the bucket of its distance; one table for all layers."""

    def __init__(self, config: Seq2SeqConfig, both_ways: bool) -> None:
        super().__init__()
        self._rule = both_ways, config.num_buckets, config.max_distance
        self.weight = nn.Parameter(torch.empty(config.num_buckets, config.num_heads))

    def forward(self, queries: range, num_keys: int) -> Tensor:
        """bias_1HQK of queries at these columns and the keys 0 … num_keys - 1. Tokens of one
        document lie in a run, so that columns give their distances in packed rows too."""
        device = self.weight.device
        keys_1K = torch.arange(num_keys, device=device)[None]
        queries_Q1 = torch.arange(queries.start, queries.stop, device=device)[:, None]
        return self.weight[buckets(keys_1K - queries_Q1, *self._rule)].permute(2, 0, 1)[None]


def sinusoids(positions_BT: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """table_BTD: sines in even channels, cosines in odd ones (Vaswani et al., 2017, section
    3.5)."""
    even = torch.arange(0, dim, 2, device=positions_BT.device, dtype=torch.float64)
    angles = positions_BT[..., None] * 10000.0 ** (-even / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(dtype)

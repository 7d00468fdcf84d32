"""Draws noise for embeddings from counters (NEFTune, Jain et al., 2023).

Each number is a hash of the seed, the row's place in the order of all samples, its column and its
channel (splitmix64, Steele et al., 2014). So it does not depend on layout, micro batches, device or
where a run resumed, and no state has to be saved. Cost while it is drawn: some int64 of each number
of a micro batch's embeddings.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP = 0x9E3779B97F4A7C15 - (1 << 64)
FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""As int64, whose products and sums wrap as those of uint64 do."""


# B rows · T tokens of this process · D channels
def token_keys(seed: int, numbers_B: Tensor, columns_T: Tensor) -> Tensor:
    """int64 keys_BT. numbers_B: place of each row among all samples; columns_T: of each token in
    its row."""
    rows_B = mixed(mixed(torch.tensor(seed, device=numbers_B.device)) + numbers_B)
    return mixed(rows_B[:, None] + columns_T)


def uniform(keys_BT: Tensor, num_channels: int) -> Tensor:
    """Float32 in [-1, 1), of 24 random bits each, (B, T, D)."""
    channels_D = torch.arange(num_channels, device=keys_BT.device)
    bits = _shifted(mixed(keys_BT[..., None] + channels_D), 40)
    return bits.float() * 2.0**-23 - 1


def mixed(x: Tensor) -> Tensor:
    """The number of splitmix64 for each counter."""
    x = x + STEP
    x = (x ^ _shifted(x, 30)) * FACTORS[0]
    x = (x ^ _shifted(x, 27)) * FACTORS[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    # Of int64 the sign moves in from the left.
    return (x >> bits) & ((1 << (64 - bits)) - 1)

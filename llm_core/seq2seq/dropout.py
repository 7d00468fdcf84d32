"""Dropout whose choices do not depend on layout, micro batches, lengths of rows or where a run
resumed.

Whether a number is dropped is a hash of the seed, the row's place in the order of all samples, the
token's column, the site in the model and the channel (`llm_core.model.noise`). Cost: some int64 for
each activation of a site while it is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_core.model.noise import mixed, token_keys, uniform


# B rows · T tokens · H heads · Q queries · K keys · D channels
@dataclass(frozen=True)
class Dropout:
    """Drops a share of the activations of tokens, which have these keys (int64, B x T)."""

    share: float
    keys_BT: Tensor

    def __call__(self, x_BTD: Tensor, site: int) -> Tensor:
        kept = self._kept(site, x_BTD.shape[-1])
        return x_BTD * kept.to(x_BTD.dtype) / (1 - self.share)

    def weights(self, weights_BHQK: Tensor, site: int) -> Tensor:
        """Of attention. Numbered by key before head, so that more keys change no choice."""
        _, heads, _, keys = weights_BHQK.shape
        kept = self._kept(site, keys * heads).unflatten(-1, (keys, heads)).permute(0, 3, 1, 2)
        return weights_BHQK * kept.to(weights_BHQK.dtype) / (1 - self.share)

    def _kept(self, site: int, num_channels: int) -> Tensor:
        return uniform(mixed(self.keys_BT + site), num_channels) >= 2 * self.share - 1


def dropout_of(share: float, seed: int, numbers_B: Tensor, num_tokens: int) -> Dropout | None:
    """None where nothing is dropped. numbers_B: int64 place of each row among all samples of a
    run."""
    if not share:
        return None
    columns_T = torch.arange(num_tokens, device=numbers_B.device)
    return Dropout(share, token_keys(seed, numbers_B, columns_T))

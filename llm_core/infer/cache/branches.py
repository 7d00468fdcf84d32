"""Lets several answers stand behind one context in a row: each attends the context and itself.

A row is a trunk and branches behind it; a branch does not see the others. All rows may begin with
one prefix, whose keys and values come from a cache of one row and are held once. Positions are the
caller's: those of a branch continue those of the trunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.infer.cache.attention import attend_keys, attend_masked, named
from llm_core.infer.cache.static import StaticCache
from llm_core.model.config import ModelConfig
from llm_core.model.sparse.patterns import Pattern

# B rows · H query heads · G key/value heads · Q queries of this pass · P keys of the prefix
# K keys, those of this pass behind the prefix · D width of a head

MASK_NUMBERS = 1 << 27
"""Of the masks in memory at once: rows x query heads of a group x queries x keys."""


class BranchCache:
    """Who attends whom in one pass; nothing is kept for another.

    branches_BQ: 0 in the trunk, 1 and up in branches, -1 where padding stands, behind all of a row.
    positions_BQ: places in the sequence, which patterns count by. prefix: keys and values of the
    tokens that stand before every row; it is full. has_branches: whether any row has one.
    """

    def __init__(
        self,
        config: ModelConfig,
        branches_BQ: Tensor,
        positions_BQ: Tensor,
        prefix: StaticCache | None,
        has_branches: bool,
    ) -> None:
        self.config, self.prefix = config, prefix
        self.branches_BQ, self.positions_BQ = branches_BQ, positions_BQ
        self.num_prefix = 0 if prefix is None else prefix.capacity
        self._is_plain = prefix is None and not has_branches
        self.patterns = config.patterns
        self._biases: dict[Pattern, Tensor] = {}

    def attend(self, layer: int, q_BHQD: Tensor, k_BGQD: Tensor, v_BGQD: Tensor) -> Tensor:
        """mixed_BHQD."""
        pattern = self.patterns[layer]
        if self._is_plain:
            return attend_keys(q_BHQD, k_BGQD, v_BGQD, pattern)
        rows, heads, queries, _ = q_BHQD.shape
        if self.prefix is not None:
            k_BGQD, v_BGQD = (
                torch.cat((numbers.read(layer).expand(rows, -1, -1, -1), own), dim=2)
                for numbers, own in ((self.prefix.keys, k_BGQD), (self.prefix.values, v_BGQD))
            )
        _, groups, keys, _ = k_BGQD.shape
        step = max(1, MASK_NUMBERS // (rows * (heads // groups) * keys))
        if step >= queries:
            if pattern not in self._biases:
                self._biases[pattern] = self._bias(q_BHQD, 0, queries, pattern)
            return attend_masked(q_BHQD, k_BGQD, v_BGQD, self._biases[pattern])
        parts = []
        for begin in range(0, queries, step):
            end = min(begin + step, queries)
            bias_B1QK = self._bias(q_BHQD, begin, end, pattern)
            parts.append(attend_masked(q_BHQD[:, :, begin:end], k_BGQD, v_BGQD, bias_B1QK))
        return torch.cat(parts, dim=2)

    def _bias(self, q_BHQD: Tensor, begin: int, end: int, pattern: Pattern) -> Tensor:
        """bias_B1QK of some queries: 0 where they attend, else minus infinity."""
        branches_BQ, positions_BQ = self.branches_BQ, self.positions_BQ
        place_Q = torch.arange(branches_BQ.shape[1], device=branches_BQ.device)
        own_BQ1, of_key_B1K = branches_BQ[:, begin:end, None], branches_BQ[:, None]
        allowed_BQK = (of_key_B1K == 0) | (of_key_B1K == own_BQ1)
        allowed_BQK &= place_Q[begin:end, None] >= place_Q
        before_P = torch.arange(self.num_prefix, device=branches_BQ.device)
        positions_BK = torch.cat((before_P.expand(len(positions_BQ), -1), positions_BQ), dim=1)
        allowed_BQK = F.pad(allowed_BQK, (self.num_prefix, 0), value=True)
        allowed_BQK &= named(pattern, positions_BQ[:, begin:end, None], positions_BK[:, None])
        return q_BHQD.new_zeros(allowed_BQK.shape).masked_fill_(~allowed_BQK, -torch.inf)[:, None]

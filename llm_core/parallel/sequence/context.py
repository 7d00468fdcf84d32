"""Computes attention of rows whose tokens are spread over processes: each holds a slice of every
row, and attention exchanges.

| kind | what is sent in each layer | limits |
|---|---|---|
| all_gather | keys and values of all slices to everyone, their gradients back (Dubey et al. 2024, section 3.3.2) | none |
| ulysses | heads for tokens and back: each process attends whole rows with some heads (Jacobs et al. 2023) | kv heads |
| ring | keys and values of a slice to the next process while that at hand is attended (Liu et al. 2023) | kernels |

Slices are runs of tokens, or for `all_gather` and `ring` in `balanced` order the r-th chunk and the
r-th from the end of 2n chunks, because late queries attend more keys. Everything but attention is
by token, so only positions, loss count and gradient sums know of slices. Documents are given whole.
Cost per layer and process: keys and values of whole rows received with `all_gather` and `ring`, all
held at once with `all_gather` only (`llm_core.parallel.sequence.ring`); with `ulysses` queries,
keys, values and results of a slice.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.model.attend import Backend, Mask, attend
from llm_core.model.experts.feed_forward import SparseFeedForward
from llm_core.model.masks import AttentionMask
from llm_core.model.transformer import Transformer
from llm_core.parallel.collectives import exchange, gather
from llm_core.parallel.degrees import ContextKind
from llm_core.parallel.sequence.ring import Ring

# B rows · K tokens of whole rows · T tokens of this process · n processes · H heads · D width of a
# head


@dataclass(frozen=True, eq=False)
class Context:
    """This process among those that hold slices of the same rows."""

    group: dist.ProcessGroup
    kind: ContextKind
    balanced: bool = False

    def apply(self, model: Transformer) -> None:
        """Let the attention of every block meet the other slices."""
        for block in model.own_blocks:
            block.attention.mix = self.mix
            if isinstance(block.ffn, SparseFeedForward):
                block.ffn.sum_context = self.sum

    def sum(self, counts: Tensor) -> Tensor:
        """Counts of these rows over the slices of all processes; without gradient."""
        whole = counts.clone()
        dist.all_reduce(whole, group=self.group)
        return whole

    def columns(self, num_tokens: int, device: torch.device) -> Tensor:
        """int64 columns_T of this process in rows of `num_tokens`."""
        return self._order(num_tokens, device).view(self.size, -1)[dist.get_rank(self.group)]

    def slice(
        self, ids_BK: Tensor, targets_BK: Tensor, positions_BK: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(ids_BT, targets_BT, positions_BT) of this process. positions_BK: 0, 1, 2 … when None."""
        columns_T = self.columns(ids_BK.shape[1], ids_BK.device)
        if positions_BK is None:
            return ids_BK[:, columns_T], targets_BK[:, columns_T], columns_T.expand(len(ids_BK), -1)
        return ids_BK[:, columns_T], targets_BK[:, columns_T], positions_BK[:, columns_T]

    def mix(
        self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, mask: Mask, backend: Backend
    ) -> Tensor:
        """As `attend` over whole rows, and their mask: mixed_BHTD of this process's queries."""
        assert isinstance(mask, AttentionMask), "a cache holds whole rows"
        if self.kind == "ring":
            return Ring(self.group, self.balanced).attend(q_BHTD, k_BHTD, v_BHTD, mask, backend)
        if self.kind == "ulysses":
            q_BHKD, k_BHKD, v_BHKD = (self._heads_for_tokens(x) for x in (q_BHTD, k_BHTD, v_BHTD))
            return self._tokens_for_heads(attend(q_BHKD, k_BHKD, v_BHKD, mask, backend))
        num_keys = k_BHTD.shape[2] * self.size
        k_BHKD, v_BHKD = self._in_order(gather(torch.stack((k_BHTD, v_BHTD)), 3, self.group), 3)
        name = ("context", num_keys)
        if name not in mask.made:
            mask.made[name] = dataclasses.replace(
                mask, columns_Q=self.columns(num_keys, q_BHTD.device), made={}
            )
        return attend(q_BHTD, k_BHKD, v_BHKD, cast(AttentionMask, mask.made[name]), backend)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    def _order(self, num_tokens: int, device: torch.device) -> Tensor:
        """Columns of the slices of all processes, one after another."""
        columns = torch.arange(num_tokens, device=device)
        if not self.balanced:
            return columns
        # Chunks r and 2n - 1 - r go to process r.
        early, late = columns.view(2, self.size, -1)
        return torch.stack((early, late.flip(0)), dim=1).flatten()

    def _in_order(self, x: Tensor, dim: int) -> Tensor:
        if not self.balanced:
            return x
        return x.index_select(dim, self._order(x.shape[dim], x.device).argsort())

    def _heads_for_tokens(self, x_BHTD: Tensor) -> Tensor:
        """All heads of some tokens → some heads of all tokens."""
        chunks = x_BHTD.unflatten(1, (self.size, -1)).movedim(1, 0)
        return exchange(chunks, self.group).movedim(0, 2).flatten(2, 3)

    def _tokens_for_heads(self, x_BHKD: Tensor) -> Tensor:
        chunks = x_BHKD.unflatten(2, (self.size, -1)).movedim(2, 0)
        return exchange(chunks, self.group).movedim(0, 1).flatten(1, 2)

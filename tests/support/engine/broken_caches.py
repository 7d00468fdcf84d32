"""Caches of keys and values with one defect each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from llm_core.infer.cache import StaticCache
from llm_core.infer.engine import MakeCache, static_cache
from llm_core.model.transformer import Transformer

FAR_COLUMN = 30
"""Beyond the tokens that a check generates, within its grid."""


class Broken(StaticCache):
    """A static cache with one defect, named by `defect`."""

    defect = ""

    def positions(self, num_queries: int) -> Tensor:
        positions_BT = super().positions(num_queries)
        if self.defect == "positions of padding":
            return torch.arange(self.length, self.length + num_queries)[None].expand_as(
                positions_BT
            )
        return positions_BT + (1 if self.defect == "position after a prefix" and self.length else 0)

    def mask(self, num_queries: int) -> Tensor | None:
        mask = super().mask(num_queries)
        columns_K = torch.arange(self.length + num_queries)
        if self.defect == "padding" and mask is not None and self._padded:
            return (columns_K <= columns_K[self.length :, None])[None, None]
        if self.defect == "top-left mask" and mask is not None and self.length and not self._padded:
            return (columns_K <= torch.arange(num_queries)[:, None])[None, None]
        if self.defect == "sees one ahead" and mask is not None and num_queries > 1:
            return (columns_K <= columns_K[self.length :, None] + 1)[None, None] & (mask | True)
        return mask

    def update(self, layer: int, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().update(layer, k_BHTD, v_BHTD)
        wrong = keys.clone()
        if self.defect == "key of the newest token" and keys.shape[2] > 3:
            wrong[:, :, -1] = 0
        if self.defect == "key far back" and keys.shape[2] > FAR_COLUMN:
            wrong[:, :, FAR_COLUMN] = wrong[:, :, FAR_COLUMN - 1]
        if self.defect == "row 4" and keys.shape[0] > 4:
            wrong[4] = wrong[3]
        if self.defect == "last row" and keys.shape[0] == 6 and not self._padded:
            wrong[-1] = wrong[0]
        if self.defect == "last column" and keys.shape[2] == self.capacity:
            wrong[:, :, -1] = wrong[:, :, -2]
        if self.defect == "one layer" and layer == 2 and keys.shape[2] > 20:
            wrong[:, 0, 0] = 0
        return wrong, values * float("nan") if self.defect == "nan" else values


def make_broken(defect: str) -> MakeCache:
    def make(
        model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> StaticCache:
        cache = static_cache(model, prompts, max_new_tokens)
        cache.__class__ = type(f"Broken {defect}", (Broken,), {"defect": defect})
        return cache

    return make

"""Caches of keys and values with one defect each."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.infer.cache.attention import attend_keys, attend_ragged
from llm_core.infer.cache.rows import MakeCache, static_cache
from llm_core.infer.cache.static import StaticCache
from llm_core.model.transformer import Transformer

FAR_COLUMN = 30
"""Beyond the tokens that a check generates, within its grid."""


class Broken(StaticCache):
    """A static cache with one defect, named by `defect`."""

    defect = ""

    def positions(self, num_queries: int) -> Tensor:
        positions_BT = super().positions(num_queries)
        if self.defect == "positions of the longest row":
            first = max(self._lengths)
            return torch.arange(first, first + num_queries).expand_as(positions_BT)
        late = self.defect == "position after a prefix" and min(self._lengths) > 0
        return positions_BT + int(late)

    def _mix(self, layer: int, q_BHTD: Tensor) -> Tensor:
        queries, end = q_BHTD.shape[2], max(self._lengths) + q_BHTD.shape[2]
        k_BGKD, v_BGKD = self._read(layer, end)
        if self.defect == "lengths of rows" and not self._is_even:
            return attend_keys(q_BHTD, k_BGKD, v_BGKD)
        if self.defect == "top-left mask" and queries > 1 and self._lengths[0]:
            return F.scaled_dot_product_attention(
                q_BHTD, k_BGKD, v_BGKD, is_causal=True, enable_gqa=True
            )
        if self.defect == "sees one ahead" and queries > 1:
            # As if each query were one place further on; the last has nothing there.
            ahead = attend_ragged(
                q_BHTD, k_BGKD, v_BGKD, (self.lengths_B + queries + 1).clamp(max=end + 1)
            )
            return torch.cat((ahead[:, :, :-1], super()._mix(layer, q_BHTD)[:, :, -1:]), dim=2)
        return super()._mix(layer, q_BHTD)

    def _read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        keys, values = super()._read(layer, end)
        wrong, rows = keys.clone(), keys.shape[0]
        if self.defect == "key of the newest token" and end > 3:
            wrong[:, :, -1] = 0
        if self.defect == "key far back" and end > FAR_COLUMN:
            wrong[:, :, FAR_COLUMN] = wrong[:, :, FAR_COLUMN - 1]
        if self.defect == "row 4" and rows > 4:
            wrong[4] = wrong[3]
        if self.defect == "last row" and rows == 6 and self._is_even:
            wrong[-1] = wrong[0]
        if self.defect == "last column" and end == self.capacity:
            wrong[:, :, -1] = wrong[:, :, -2]
        if self.defect == "one layer" and layer == 2 and end > 20:
            wrong[:, 0, : end // 2] = 0
        return wrong, values * float("nan") if self.defect == "nan" else values

    def truncate(self, lengths: Sequence[int]) -> None:
        super().truncate(lengths)
        if self.defect == "one token too many is forgotten" and any(lengths):
            super().truncate([max(0, length - 1) for length in lengths])

    def fork(self, rows: Sequence[int]) -> StaticCache:
        twin = super().fork(rows)
        if self.defect == "a fork shares keys":
            twin.keys = self.keys
        return twin


def make_broken(defect: str) -> MakeCache:
    kind = type(f"Broken {defect}", (Broken,), {"defect": defect})
    return make_of(kind)


def make_of(kind: type[StaticCache]) -> MakeCache:
    def make(model: Transformer, lengths: Sequence[int], max_new_tokens: int) -> StaticCache:
        cache = static_cache(model, lengths, max_new_tokens)
        cache.__class__ = kind
        return cache

    return make

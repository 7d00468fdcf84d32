"""The check of the cache passes a right one, and fails one with any defect."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from llm_core.infer.cache import StaticCache
from llm_core.infer.engine import static_cache
from llm_core.infer.equivalence import TOLERANCE, cache_difference
from llm_core.model.transformer import Transformer
from tests.llm_core.infer.small_model import make_model


class Broken(StaticCache):
    """A static cache with one defect, named by `defect`."""

    defect = ""

    def positions(self, num_queries: int) -> Tensor:
        positions_BT = super().positions(num_queries)
        return positions_BT + (1 if self.defect == "position" and self.length else 0)

    def mask(self, num_queries: int) -> Tensor | None:
        mask = super().mask(num_queries)
        if self.defect == "padding" and mask is not None and self._padded:
            columns_K = torch.arange(self.length + num_queries)
            return (columns_K <= columns_K[self.length :, None])[None, None]
        return mask

    def update(self, layer: int, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().update(layer, k_BHTD, v_BHTD)
        if self.defect == "stale" and keys.shape[2] > 3:
            keys = keys.clone()
            keys[:, :, -1] = 0
        if self.defect == "nan":
            values = values * float("nan")
        return keys, values


def make_broken(defect: str) -> object:
    def make(model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> StaticCache:
        cache = static_cache(model, prompts, max_new_tokens)
        cache.__class__ = type(f"Broken{defect}", (Broken,), {"defect": defect})
        return cache

    return make


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_right_cache_is_within_tolerance(num_kv_heads: int) -> None:
    assert cache_difference(make_model(num_kv_heads), 16, seed=0) <= TOLERANCE


@pytest.mark.parametrize("defect", ["position", "padding", "stale", "nan"])
def test_broken_cache_is_found(defect: str) -> None:
    difference = cache_difference(make_model(), 16, seed=0, make_cache=make_broken(defect))  # type: ignore[arg-type]
    assert not difference <= 1e4 * TOLERANCE

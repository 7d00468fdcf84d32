"""Causal grouped-query attention (Ainslie et al., 2023) over one fused query-key-value projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from llm_core.model.attend import Backend, Mask, attend
from llm_core.model.config import ModelConfig
from llm_core.model.masks import CAUSAL
from llm_core.model.rope import apply_rope

# B batch · T tokens of this pass (queries) · K key positions · H heads · D width: of the model in BTD, of a head in BHTD


class KeyValueCache(Protocol):
    """What a forward pass needs from a cache of earlier keys and values.

    `mask` is asked once per pass, before the first `update`; `update` once per layer.
    """

    def mask(self, num_queries: int) -> Tensor | None:
        """Boolean, broadcastable to B1TK, True where a query of the coming pass may attend; None: everywhere."""

    def update(self, layer: int, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of this pass, and give back all of the layer as k_BHKD, v_BHKD."""


Mix = Callable[[Tensor, Tensor, Tensor, Mask, Backend], Tensor]
"""q_BHTD, k_BHKD, v_BHKD → mixed_BHTD; as `attend`, or with keys that other processes hold."""


class Attention(nn.Module):
    """Queries, keys and values from one product; `mix` and `backend` say who attends and by which kernel."""

    mix: Mix
    backend: Backend

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.mix, self.backend = attend, "sdpa"
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        # Rows: all query heads, then all key heads, then all value heads.
        self.qkv = nn.Linear(config.dim, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(
        self, x_BTD: Tensor, rope: tuple[Tensor, Tensor], mask: Mask = CAUSAL, cache: KeyValueCache | None = None
    ) -> Tensor:
        batch, tokens, _ = x_BTD.shape
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        qkv_BHTD = self.qkv(x_BTD).view(batch, tokens, sum(heads), self.head_dim).transpose(1, 2)
        q_BHTD, k_BHTD, v_BHTD = qkv_BHTD.split(heads, dim=1)
        q_BHTD, k_BHTD = apply_rope(q_BHTD, *rope), apply_rope(k_BHTD, *rope)
        if cache is not None:
            k_BHTD, v_BHTD = cache.update(self.layer, k_BHTD, v_BHTD)
        mixed_BHTD = self.mix(q_BHTD, k_BHTD, v_BHTD, mask, self.backend)
        return self.out(mixed_BHTD.transpose(1, 2).reshape(batch, tokens, -1))

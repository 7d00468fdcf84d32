"""Causal grouped-query attention (Ainslie et al., 2023) over one fused projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from llm_core.model.attend import Backend, Mask, attend
from llm_core.model.config import ModelConfig
from llm_core.model.masks import CAUSAL
from llm_core.model.norm import RMSNorm
from llm_core.model.rope import apply_rope

# B batch · T tokens of this pass (queries) · K key positions · G key/value heads · H heads: all, or
# of a group in GH · D width: of the model in BTD, of a head in BHTD


class KeyValueCache(Protocol):
    """What a forward pass needs of a cache: that it attends. It knows who may see what."""

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        """Store the keys and values of this pass, then attend to all so far; mixed_BHTD.

        Called once per layer, in their order.
        """


Mix = Callable[[Tensor, Tensor, Tensor, Mask, Backend], Tensor]
"""q_BHTD, k_BHKD, v_BHKD → mixed_BHTD; as `attend`, or with keys that other processes hold."""


SplitHeads = Callable[[Tensor, tuple[Tensor, Tensor]], tuple[Tensor, Tensor, Tensor]]
"""qkv_BTGHD, `rope_tables` → turned q_BHTD and k_BGTD, v_BGTD; or k and v per query head."""


SplitProduct = Callable[[Any, Tensor, tuple[Tensor, Tensor]], tuple[Tensor, Tensor, Tensor]]
"""An attention, x_BTD, `rope_tables` → as `SplitHeads`."""


def split_together(qkv_BTGHD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """`SplitHeads` without a backward and with few tokens, where fewer operations are faster:
    queries and keys turn as one."""
    cos_BT11D, sin_BT11D = (table_B1TD[:, 0, :, None, None] for table_B1TD in rope)
    turned_BTGHD = apply_rope(qkv_BTGHD[..., :-1, :], cos_BT11D, sin_BT11D)
    q_BHTD = turned_BTGHD[..., :-1, :].flatten(2, 3).transpose(1, 2)
    k_BGTD, v_BGTD = (x[..., -1, :].transpose(1, 2) for x in (turned_BTGHD, qkv_BTGHD))
    return q_BHTD, k_BGTD, v_BGTD


class Attention(nn.Module):
    """Queries, keys and values from one product; `mix` and `backend` say who attends and by which
    kernel.

    `own_split`, where it is given, takes the place of torch's operations between the product and
    attention, and `own_product` that of the product too; `split_cached` does in passes with a
    cache, which have no backward.
    """

    mix: Mix
    backend: Backend
    own_split: SplitHeads | None
    own_product: SplitProduct | None
    split_cached: SplitHeads

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.mix, self.backend, self.own_split = attend, "sdpa", None
        self.own_product = None
        self.split_cached = split_together
        self.group_size, self.head_dim = config.num_heads // config.num_kv_heads, config.head_dim
        # Rows: for each key/value head its query heads, the key, the value (llm_core.model.fused).
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = nn.Linear(config.dim, width, bias=config.qkv_bias)
        self.out = nn.Linear(config.attention_dim, config.dim, bias=config.out_bias)
        self.qk_norm, self.turns_whole_heads = config.qk_norm, config.rotary_frac == 1
        if config.qk_norm:
            self.q_norm, self.k_norm = (RMSNorm(config.head_dim, config.norm_eps) for _ in range(2))

    def forward(
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        mask: Mask = CAUSAL,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        if self.own_product is not None and rope is not None and cache is None:
            mixed_BHTD = self.mix(*self.own_product(self, x_BTD, rope), mask, self.backend)
            return self.out(mixed_BHTD.transpose(1, 2).flatten(2))
        qkv_BTD = self.qkv(x_BTD)
        batch, tokens, _ = qkv_BTD.shape
        # Tensor parallelism leaves some of the groups here. Queries lose their group after
        # rotation: then nothing is copied.
        qkv_BTGHD = qkv_BTD.view(batch, tokens, -1, self.group_size + 2, self.head_dim)
        if self.own_split is not None and rope is not None:
            q_BHTD, k_BGTD, v_BGTD = self.own_split(qkv_BTGHD, rope)
        elif cache is not None and rope is not None and not self.qk_norm:
            q_BHTD, k_BGTD, v_BGTD = self.split_cached(qkv_BTGHD, rope)
        else:
            q_BHTD, k_BGTD, v_BGTD = self._split(qkv_BTGHD, rope)
        if cache is not None:
            mixed_BHTD = cache.attend(self.layer, q_BHTD, k_BGTD, v_BGTD)
        else:
            mixed_BHTD = self.mix(q_BHTD, k_BGTD, v_BGTD, mask, self.backend)
        return self.out(mixed_BHTD.transpose(1, 2).reshape(batch, tokens, -1))

    def _split(
        self, qkv_BTGHD: Tensor, rope: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        # One split, not three slices: its backward writes the gradient once, where each slice would
        # fill all of it with zeros. Before tokens and heads change places: so it writes in the
        # order of the product.
        parts = qkv_BTGHD.split((self.group_size, 1, 1), dim=3)
        q_BGHTD, k_BG1TD, v_BG1TD = (part.permute(0, 2, 3, 1, 4) for part in parts)
        k_BGTD, v_BGTD = k_BG1TD.squeeze(2), v_BG1TD.squeeze(2)
        if self.qk_norm:
            q_BGHTD, k_BGTD = self.q_norm(q_BGHTD), self.k_norm(k_BGTD)
        if rope is not None:
            cos_B1TD, sin_B1TD = rope
            q_BGHTD = apply_rope(q_BGHTD, cos_B1TD[:, None], sin_B1TD[:, None])
            k_BGTD = apply_rope(k_BGTD, cos_B1TD, sin_B1TD)
        return q_BGHTD.flatten(1, 2), k_BGTD, v_BGTD

"""Attention, feed-forward and blocks of encoders and decoders."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.loss import precise
from llm_core.model.norm import LayerNorm, RMSNorm
from llm_core.seq2seq.config import Seq2SeqConfig
from llm_core.seq2seq.dropout import Dropout

# B rows · Q queries · K keys · H heads · D width: of the model in BQD, of a head in BHQD

SITES = 8
"""Places of dropout in a block, numbered from `Block.site` on."""


Keys = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(layer, k_BHQD, v_BHQD of this pass) → those that self-attention attends: a cache adds earlier
ones."""


def own_keys(_layer: int, k_BHQD: Tensor, v_BHQD: Tensor) -> tuple[Tensor, Tensor]:
    """Those of this pass alone."""
    return k_BHQD, v_BHQD


class Attention(nn.Module):
    """Scores are plain products, so that a bias can be added and weights dropped."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scale = 1.0 if config.kind == "t5" else 1 / math.sqrt(config.head_dim)
        self.drops_weights = config.kind == "t5"
        width = config.attention_dim
        self.q, self.k, self.v = (nn.Linear(config.dim, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, config.dim, bias=False)

    def keys_and_values(self, memory_BKD: Tensor) -> tuple[Tensor, Tensor]:
        """(k_BHKD, v_BHKD)"""
        return self._heads(self.k(memory_BKD)), self._heads(self.v(memory_BKD))

    def forward(
        self,
        x_BQD: Tensor,
        k_BHKD: Tensor,
        v_BHKD: Tensor,
        allowed_BQK: Tensor,
        bias_1HQK: Tensor | None = None,
        drop: Dropout | None = None,
        site: int = 0,
    ) -> Tensor:
        """allowed_BQK: whether a query attends a key. One that attends none gets zeros."""
        scores_BHQK = precise(self._heads(self.q(x_BQD)) @ k_BHKD.transpose(-2, -1)) * self.scale
        if bias_1HQK is not None:
            scores_BHQK = scores_BHQK + bias_1HQK
        allowed_B1QK = allowed_BQK[:, None]
        # Not minus infinity, which has no softmax where no key is allowed.
        lowest = torch.finfo(scores_BHQK.dtype).min
        weights_BHQK = scores_BHQK.masked_fill(~allowed_B1QK, lowest).softmax(dim=-1)
        weights_BHQK = (weights_BHQK * allowed_B1QK).to(v_BHKD.dtype)
        if drop is not None and self.drops_weights:
            weights_BHQK = drop.weights(weights_BHQK, site)
        return self.out((weights_BHQK @ v_BHKD).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        has_biases = self.is_plain = config.kind == "transformer"
        self.up = nn.Linear(config.dim, config.ffn_dim, bias=has_biases)
        self.gate: nn.Linear | None = None
        if config.ffn == "geglu":
            self.gate = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=has_biases)

    def forward(self, x_BTD: Tensor, drop: Dropout | None, site: int) -> Tensor:
        if self.gate is None:
            inner = F.relu(self.up(x_BTD))
        else:
            inner = F.gelu(self.gate(x_BTD), approximate="tanh") * self.up(x_BTD)
        if drop is not None and not self.is_plain:
            inner = drop(inner, site)
        return self.down(inner)  # type: ignore[no-any-return]


def make_norm(config: Seq2SeqConfig) -> nn.Module:
    kind = RMSNorm if config.kind == "t5" else LayerNorm
    return kind(config.dim, config.norm_eps)


class Block(nn.Module):
    """Self-attention, in decoders attention to the source, and a feed-forward, each added to the
    residual stream."""

    def __init__(self, config: Seq2SeqConfig, layer: int, in_decoder: bool) -> None:
        super().__init__()
        self.layer, self.site = layer, (2 * layer + 2 + in_decoder) * SITES
        self.norms_first = config.kind == "t5"
        self.attention_norm, self.attention = make_norm(config), Attention(config)
        if in_decoder:
            self.cross_norm, self.cross = make_norm(config), Attention(config)
        self.ffn_norm, self.ffn = make_norm(config), FeedForward(config)

    def forward(
        self,
        x_BQD: Tensor,
        allowed_BQK: Tensor,
        bias_1HQK: Tensor | None,
        drop: Dropout | None,
        source: tuple[Tensor, Tensor] | None = None,
        source_allowed_BQS: Tensor | None = None,
        keys: Keys = own_keys,
    ) -> Tensor:
        """source: keys and values of the encoder's output, in decoders."""

        def attend(own_BQD: Tensor) -> Tensor:
            pair = keys(self.layer, *self.attention.keys_and_values(own_BQD))
            return self.attention(own_BQD, *pair, allowed_BQK, bias_1HQK, drop, self.site)  # type: ignore[no-any-return]

        x_BQD = self._add(x_BQD, attend, self.attention_norm, drop, self.site + 1)
        if source is not None and source_allowed_BQS is not None:
            k_BHSD, v_BHSD = source

            def attend_source(own_BQD: Tensor) -> Tensor:
                allowed, site = source_allowed_BQS, self.site + 2
                return self.cross(own_BQD, k_BHSD, v_BHSD, allowed, None, drop, site)  # type: ignore[no-any-return]

            x_BQD = self._add(x_BQD, attend_source, self.cross_norm, drop, self.site + 3)

        def feed(own_BQD: Tensor) -> Tensor:
            return self.ffn(own_BQD, drop, self.site + 4)  # type: ignore[no-any-return]

        return self._add(x_BQD, feed, self.ffn_norm, drop, self.site + 5)

    def _add(
        self,
        x_BQD: Tensor,
        compute: Callable[[Tensor], Tensor],
        norm: nn.Module,
        drop: Dropout | None,
        site: int,
    ) -> Tensor:
        delta_BQD = compute(norm(x_BQD) if self.norms_first else x_BQD)
        x_BQD = x_BQD + (delta_BQD if drop is None else drop(delta_BQD, site))
        return x_BQD if self.norms_first else norm(x_BQD)  # type: ignore[no-any-return]

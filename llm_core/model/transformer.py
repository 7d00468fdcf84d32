"""A Llama-type decoder: pre-norm blocks of attention and SwiGLU on a residual stream (Touvron et al., 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.attend import Mask
from llm_core.model.attention import Attention, KeyValueCache
from llm_core.model.config import ModelConfig
from llm_core.model.masks import CAUSAL, AttentionMask, Pattern, restarting_positions
from llm_core.model.norm import RMSNorm
from llm_core.model.rope import rope_tables

# B batch · T tokens · K key positions · D model width · V vocabulary

EMBEDDING, HEAD = "embedding.weight", "head.weight"


def global_name(config: ModelConfig, name: str) -> str:
    """The name by which a weight is drawn and saved: that of the embedding for a head tied to it, be it a copy."""
    return EMBEDDING if config.tied_embeddings and name == HEAD else name


class SwiGLU(nn.Module):
    """silu(gate) * up, then down (Shazeer, 2020); gate and up are one product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, up = self.gate_up(x_BTD).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config, layer)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn = SwiGLU(config)

    def forward(
        self, x_BTD: Tensor, rope: tuple[Tensor, Tensor], mask: Mask = CAUSAL, cache: KeyValueCache | None = None
    ) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rope, mask, cache)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


class Transformer(nn.Module):
    """Ids in, next-token logits out. `hidden` and `logits` are separate, so that a caller chooses the positions it pays for.

    Parts may be None, where a pipeline has given them to another process: without `embedding` the input is the residual stream of
    the blocks before, without `head` the output is the residual stream for the blocks after.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.vocab_size > 0, "vocab_size must be resolved before a model is built"
        self.config = config
        self.pattern = Pattern()
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight

    def hidden(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        cache: KeyValueCache | None = None,
        documents_BK: Tensor | None = None,
    ) -> Tensor:
        """The normed last residual stream, hidden_BTD.

        positions_BT: place of each token in its document; 0, 1, 2 … in each when None.
        cache: keys and values of earlier tokens; without one, attention is causal over `ids_BT` alone.
        documents_BK: which document of its row each token belongs to; they do not attend each other. None: one per row.
        """
        if positions_BT is None:
            if documents_BK is None:
                positions_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device)[None]
            else:
                positions_BT = restarting_positions(documents_BK)
        x_BTD = self.embedding(ids_BT) if self.embedding is not None else ids_BT
        rope = rope_tables(positions_BT, self.config.head_dim, self.config.rope_theta, x_BTD.dtype)
        mask: Mask = AttentionMask(self.pattern, documents_BK) if cache is None else cache.mask(ids_BT.shape[1])
        for block in self.blocks:
            if block is not None:
                x_BTD = block(x_BTD, rope, mask, cache)
        return self.norm(x_BTD) if self.norm is not None else x_BTD

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        return self.head(hidden_BTD)

    def forward(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        cache: KeyValueCache | None = None,
        documents_BK: Tensor | None = None,
    ) -> Tensor:
        """logits_BTV: scores of the token that follows each token."""
        hidden_BTD = self.hidden(ids_BT, positions_BT, cache, documents_BK)
        return self.logits(hidden_BTD) if self.head is not None else hidden_BTD

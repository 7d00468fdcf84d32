"""A decoder: pre-norm blocks of attention and feed-forward on a residual stream.

By its config a Llama (Touvron et al., 2023), a Qwen 2 or 3 (Yang et al., 2024 and 2025), a Gemma
(Mesnard et al., 2024), a GPT-2 (Radford et al., 2019) or a GPT-NeoX (Black et al., 2022), or one of
experts (`llm_core.model.experts`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from llm_core.config import ConfigError
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.attend import Mask
from llm_core.model.attention import Attention, KeyValueCache
from llm_core.model.config import ModelConfig
from llm_core.model.experts.feed_forward import SparseFeedForward
from llm_core.model.experts.router import as_it_is
from llm_core.model.feed_forward import FeedForward, make_feed_forward
from llm_core.model.lora import add_factors
from llm_core.model.loss import HeadLoss, whole_head_loss
from llm_core.model.masks import CAUSAL, AttentionMask, restarting_positions
from llm_core.model.noise import uniform
from llm_core.model.norm import AddNorm, add_then_norm, make_norm
from llm_core.model.rope import rope_tables

# B batch · T tokens · K key positions · D model width · V vocabulary

EMBEDDING, HEAD = "embedding.weight", "head.weight"

Recompute = Callable[..., Tensor]
"""(what computes a block, its inputs) → its output."""


def global_name(config: ModelConfig, name: str) -> str:
    """The name a weight is drawn and saved by; a tied head has the embedding's, also as a copy."""
    return EMBEDDING if config.tied_embeddings and name == HEAD else name


class Block(nn.Module):
    """Attention and feed-forward, each added to the residual stream.

    `recompute`, where it is given, runs the block in training and decides what backward finds of it
    (llm_core.memory.recompute).
    """

    add_norm: AddNorm
    recompute: Recompute | None

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.add_norm, self.recompute = add_then_norm, None
        self.attention_norm = make_norm(config)
        self.attention = Attention(config, layer)
        self.ffn_norm = make_norm(config)
        self.ffn: FeedForward | SparseFeedForward
        if config.experts is not None:
            self.ffn = SparseFeedForward(config, config.experts)
        else:
            self.ffn = make_feed_forward(config)

    def forward(
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        mask: Mask = CAUSAL,
        *counted_BT: Tensor,
    ) -> Tensor:
        """counted_BT: where experts are balanced, which tokens count for that."""
        if self.recompute is None or not torch.is_grad_enabled():
            return self.compute(x_BTD, rope, mask, *counted_BT)
        return self.recompute(self.compute, x_BTD, rope, mask, *counted_BT)

    def compute(
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        mask: Mask,
        *counted_BT: Tensor,
    ) -> Tensor:
        attended_BTD = self.attention(self.attention_norm(x_BTD), rope, mask)
        x_BTD, normed_BTD = self.add_norm(x_BTD, attended_BTD, self.ffn_norm)
        return x_BTD + self.ffn(normed_BTD, *counted_BT)

    def through_cache(
        self,
        x_BTD: Tensor,
        normed_BTD: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        cache: KeyValueCache,
        next_norm: nn.Module,
    ) -> tuple[Tensor, Tensor]:
        """(the stream, its norm for the next block). Without a backward, the norm behind a block is
        computed with the sum that ends it."""
        attended_BTD = self.attention(normed_BTD, rope, cache=cache)
        x_BTD, normed_BTD = self.add_norm(x_BTD, attended_BTD, self.ffn_norm)
        return self.add_norm(x_BTD, self.ffn(normed_BTD), next_norm)


class ParallelBlock(Block):
    """Attention and feed-forward read the same residual stream, and are added to it together."""

    def compute(
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        mask: Mask,
        *counted_BT: Tensor,
    ) -> Tensor:
        attended_BTD = self.attention(self.attention_norm(x_BTD), rope, mask)
        return x_BTD + attended_BTD + self.ffn(self.ffn_norm(x_BTD), *counted_BT)

    def through_cache(
        self,
        x_BTD: Tensor,
        normed_BTD: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        cache: KeyValueCache,
        next_norm: nn.Module,
    ) -> tuple[Tensor, Tensor]:
        attended_BTD = self.attention(normed_BTD, rope, cache=cache)
        added_BTD = attended_BTD + self.ffn(self.ffn_norm(x_BTD))
        return self.add_norm(x_BTD, added_BTD, next_norm)


class Transformer(nn.Module):
    """Ids in, next-token logits or losses out. `hidden` and `logits` are separate: a caller chooses
    the positions it pays for.

    Parts may be None, where a pipeline has given them to another process: without `embedding` the
    input is the residual stream of the blocks before, without `head` the output is the residual
    stream for the blocks after. A layout may set `head_loss`; `to_head`, which brings to the head
    what other processes hold of the residual stream; over how many its tokens are cut, and
    `own_tokens`, which takes this process's; `stream_dtype`, in which it goes from block to block
    (None: as weights of the embedding); and `noise_scale`, the size of noise on embeddings.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.vocab_size > 0, "vocab_size must be resolved before a model is built"
        self.config = config
        self.patterns = config.patterns
        self.stream_pieces = 1
        self.stream_dtype: torch.dtype | None = None
        self.noise_scale = 0.0
        self.own_tokens: Callable[[Tensor], Tensor] = as_it_is
        self.head_loss: HeadLoss = whole_head_loss
        self.to_head: Callable[[Tensor], Tensor] = as_it_is
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_seq_len, config.dim)
        block = ParallelBlock if config.parallel_residual else Block
        self.blocks = nn.ModuleList(block(config, layer) for layer in range(config.num_layers))
        self.norm = make_norm(config)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight
        if isinstance(config, AdaptedModelConfig):
            add_factors(self.own_blocks, config)

    @property
    def own_blocks(self) -> list[Block]:
        """Those of this process."""
        return [block for block in self.blocks if block is not None]

    def hidden(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        cache: KeyValueCache | None = None,
        documents_BK: Tensor | None = None,
        counted_BT: Tensor | None = None,
        noise_BT: Tensor | None = None,
    ) -> Tensor:
        """The normed last residual stream, hidden_BTD.

        positions_BT: place of each token in its document; 0, 1, 2 … in each when None. cache: keys
        and values of earlier tokens; without one, attention is causal over `ids_BT` alone.
        documents_BK: which document of its row each token belongs to; they do not attend each
        other. None: one per row. counted_BT: which tokens count in the balance of experts.
        noise_BT: keys of the noise on their embeddings (`llm_core.model.noise`). Raises ConfigError
        for a cache where documents narrow what a token attends.
        """
        if cache is not None and documents_BK is not None:
            # It has keys and values of earlier tokens, and says itself who attends them.
            raise ConfigError(
                "with a cache a token attends those before it that the model's config says, but"
                " documents_BK keeps documents apart; pass whole sequences without a cache"
            )
        if positions_BT is None:
            if documents_BK is None:
                num_tokens = ids_BT.shape[1] * (self.stream_pieces if self.embedding is None else 1)
                positions_BT = torch.arange(num_tokens, device=ids_BT.device)[None]
            else:
                positions_BT = restarting_positions(documents_BK)
        x_BTD = self._into_stream(self.embedding(ids_BT)) if self.embedding is not None else ids_BT
        if noise_BT is not None and self.embedding is not None:
            noise_BTD = uniform(self.own_tokens(noise_BT), self.config.dim)
            x_BTD = x_BTD + (self.noise_scale * noise_BTD).to(x_BTD.dtype)
        if self.config.scaled_embeddings and self.embedding is not None:
            # Rounded to the numbers of the stream, as Gemma was trained. Filled on the device:
            # a CUDA graph cannot capture a copy from the host.
            x_BTD = x_BTD * x_BTD.new_full((), self.config.dim**0.5)
        rope = None
        if self.config.positions == "rotary":
            shape = self.config.rotary_dim, self.config.rope_theta
            rope = rope_tables(positions_BT, *shape, x_BTD.dtype, self.config.rope_scaling)
        elif self.embedding is not None:
            x_BTD = x_BTD + self._into_stream(self.positions(positions_BT))
        if cache is not None:
            return self._through_cache(x_BTD, rope, cache)
        masks = {pattern: AttentionMask(pattern, documents_BK) for pattern in set(self.patterns)}
        counted = () if counted_BT is None else (counted_BT,)
        for pattern, block in zip(self.patterns, self.blocks, strict=True):
            if block is not None:
                x_BTD = block(x_BTD, rope, masks[pattern], *counted)
        return self.norm(x_BTD) if self.norm is not None else x_BTD

    def _through_cache(
        self, x_BTD: Tensor, rope: tuple[Tensor, Tensor] | None, cache: KeyValueCache
    ) -> Tensor:
        blocks = self.own_blocks
        normed_BTD = blocks[0].attention_norm(x_BTD)
        norms = [*(block.attention_norm for block in blocks[1:]), self.norm]
        for block, norm in zip(blocks, norms, strict=True):
            x_BTD, normed_BTD = block.through_cache(x_BTD, normed_BTD, rope, cache, norm)
        return normed_BTD

    def _into_stream(self, x_BTD: Tensor) -> Tensor:
        # Each before they are added: FSDP gives both in 16 bits, and sums of other numbers would
        # round otherwise.
        return x_BTD if self.stream_dtype is None else x_BTD.to(self.stream_dtype)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        return self.head(hidden_BTD)

    def forward(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        cache: KeyValueCache | None = None,
        documents_BK: Tensor | None = None,
        targets_BT: Tensor | None = None,
        counted_BT: Tensor | None = None,
        noise_BT: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """logits_BTV: scores of the token that follows each token.

        With targets, what `head_loss` gives: the loss summed over them, and losses_BT without
        gradient; logits need never be whole.
        """
        hidden_BTD = self.hidden(ids_BT, positions_BT, cache, documents_BK, counted_BT, noise_BT)
        if self.head is None:
            return hidden_BTD
        hidden_BTD = self.to_head(hidden_BTD)
        if targets_BT is None:
            return self.logits(hidden_BTD)
        return self.head_loss(self.head, hidden_BTD, targets_BT)

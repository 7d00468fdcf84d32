"""Computes a token of one sequence with int8 weights on a CPU, in one compiled loop over layers.

Products of one row are so small that starting torch's operations between them costs more than
computing them. Results equal those of the layers one by one to the last bit: products sum whole
numbers, and between them are the same kernels (`llm_core.kernels.cpu.decode`). The loop wants
weights row by row, and passes of several rows want another order, so weights are held twice.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.cpu import few_rows
from llm_core.infer.cpu.products import MAX_COPIED_BYTES
from llm_core.model.attention import split_together
from llm_core.model.feed_forward import SwiGLU, gated
from llm_core.model.norm import RMSNorm, add_then_norm
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import Block, Transformer
from llm_core.quantize.layers import RoundedEmbedding, RoundedLinear
from llm_core.quantize.on_cpu import most_of_x

# L layers · O outputs · I inputs · C channels of the residual stream · V vocabulary


class OneRow:
    """A model's layers and head for passes of one token."""

    def __init__(self, model: Transformer, cache: PagedCache) -> None:
        self.model, self.cache = model, cache
        layers = [layer for block in model.own_blocks for layer in _products(block)]
        self._largest_bytes = max(layer.num_bytes for layer in layers)

    @classmethod
    def of(cls, model: nn.Module, cache: PagedCache, copy_weights: bool) -> OneRow | None:
        """None where the loop does not compute what this model does, or may not hold its weights.

        copy_weights: whether weights may be held a second time.
        """
        return cls(model, cache) if copy_weights and _can_serve(model, cache) else None  # type: ignore[arg-type]

    @functools.cached_property
    def _weights(self) -> tuple[Any, ...]:
        """What `rounded_layers` reads, copied when a pass first needs it."""
        config, blocks = self.model.config, self.model.own_blocks
        next_norms = [*(block.attention_norm for block in blocks[1:]), self.model.norm]
        products = zip(*map(_products, blocks), strict=True)
        return (
            config.norm_eps, most_of_x(), config.ffn_block,
            _stacked([cast(Tensor, block.ffn_norm.weight) for block in blocks]),
            _stacked([cast(Tensor, norm.weight) for norm in next_norms]),
            *(numbers for layers in products for numbers in _rounded(layers)),
        )  # fmt: skip

    @functools.cached_property
    def _windows_L(self) -> Any:
        return np.array([pattern.window for pattern in self.model.config.patterns])

    @functools.cached_property
    def _head(self) -> tuple[Any, Any]:
        """numbers_VC, scale_V; those of a tied table have this order already."""
        embedding, head = self.model.embedding, cast(RoundedLinear, self.model.head)
        is_tied = isinstance(embedding, RoundedEmbedding) and embedding.table is head
        stored = embedding.rows if is_tied else head.stored
        return stored.numbers.contiguous().numpy(), stored.scale.contiguous().numpy()

    def serves(self, coming: Pass) -> bool:
        """Whether a pass has one token, and work that one thread does best."""
        return (
            coming.is_decode
            and len(coming.spans) == 1
            and self.cache.is_small(coming)
            and few_rows.is_for_one_thread(self._largest_bytes)
        )

    def hidden(self, coming: Pass) -> Tensor:
        """hidden_1C, as `Transformer.hidden` gives it."""
        from llm_core.kernels.cpu.decode import rounded_layers

        model, config = self.model, self.model.config
        stream_1C = model.embedding(coming.ids_N)  # a copy of a row, which the loop writes over
        normed_1C = model.own_blocks[0].attention_norm(stream_1C)
        rope = rope_tables(
            coming.positions_N[None], config.head_dim, config.rope_theta, torch.float32,
            config.rope_scaling,
        )  # fmt: skip
        cos_1D, sin_1D = (table[0, 0].numpy() for table in rope)
        rounded_layers(
            stream_1C.numpy(), normed_1C.numpy(), cos_1D, sin_1D, *self._weights,
            self.cache.keys.stored.numpy(), self.cache.values.stored.numpy(),
            coming.tables_SM.numpy(), coming.lengths_S.numpy(), self._windows_L,
        )  # fmt: skip
        return normed_1C

    def logits(self, hidden_BC: Tensor) -> Tensor:
        """logits_BV, as `Transformer.logits` gives them."""
        if len(hidden_BC) > 1 or not few_rows.is_for_one_thread(self._head[0].nbytes):
            return self.model.logits(hidden_BC)
        from llm_core.kernels.cpu.decode import multiply_rounded

        numbers_VC, scale_V = self._head
        logits_1V, codes_C = torch.empty(1, len(scale_V)), np.empty(hidden_BC.shape[1], np.int16)
        x_C, y_V = hidden_BC.contiguous().numpy()[0], logits_1V.numpy()[0]
        multiply_rounded(numbers_VC, scale_V, x_C, most_of_x(), codes_C, y_V)
        return logits_1V


def _can_serve(model: nn.Module, cache: PagedCache) -> bool:
    if type(model) is not Transformer or most_of_x() is None:
        return False
    stored, config = cache.keys.stored, model.config
    is_plain = stored.dtype == model.norm.weight.dtype == torch.float32  # type: ignore[union-attr]
    if not is_plain or stored.device.type != "cpu" or model.stream_dtype is not None:
        return False
    if config.family not in ("llama", "mistral", "qwen2") or type(model.norm) is not RMSNorm:
        return False
    layers = [model.head, *(layer for block in model.own_blocks for layer in _products(block))]
    size = sum(layer.num_bytes for layer in layers if isinstance(layer, RoundedLinear))
    return (
        all(map(_is_int8, layers)) and all(map(_is_usual, model.own_blocks))
    ) and size <= MAX_COPIED_BYTES


def _products(block: Block) -> tuple[RoundedLinear, ...]:
    """In the order of `rounded_layers`."""
    attention, ffn = block.attention, block.ffn
    return cast(tuple[RoundedLinear, ...], (attention.qkv, attention.out, ffn.into, ffn.down))


def _is_int8(layer: nn.Module) -> bool:
    # Sums must fit in 32 bits.
    return (
        type(layer) is RoundedLinear
        and layer.format == "int8"
        and layer.bias is None
        and layer.in_features * 127 * 127 < 1 << 31
    )


def _is_usual(block: Block) -> bool:
    """Whether everything between the products is what the loop computes."""
    attention, ffn = block.attention, block.ffn
    return (
        type(block.attention_norm) is type(block.ffn_norm) is RMSNorm
        and block.add_norm in (add_then_norm, few_rows.add_norm)
        and attention.own_split is None
        and attention.split_cached in (split_together, few_rows.split_heads)
        and type(ffn) is SwiGLU
        and ffn.own_way is None
        and ffn.gated in (gated, few_rows.gate)
    )


def _stacked(vectors: Sequence[Tensor]) -> Any:
    return torch.stack(list(vectors)).numpy()


def _rounded(layers: Sequence[RoundedLinear]) -> tuple[Any, Any]:
    """numbers_LOI, scale_LO."""
    stored = [layer.stored for layer in layers]
    return _stacked([each.numbers for each in stored]), _stacked([each.scale for each in stored])

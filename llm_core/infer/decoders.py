"""Computes the logits of one new token for each of several sequences, from tensors that stay where
they are: nothing is asked of the device, so a step can be captured in a CUDA graph.

`FusedDecoder` is one kernel for few rows (`llm_core.kernels.decode`), `ModelDecoder` the model
itself over the blocks of a paged cache.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from llm_core.infer.cache.attention import attend_ragged
from llm_core.infer.cache.paged import PagedCache
from llm_core.kernels.decode.step import MAX_ROWS, DecodeStep, Shape, why_not
from llm_core.model.config import ModelConfig
from llm_core.model.operations import apply_kernels
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import SwiGLU, Transformer

# B rows · M blocks of a row at most · H query heads · G key/value heads · D width of a head
# V vocabulary


@dataclass(frozen=True)
class DecodeRows:
    """What a step reads, in buffers that are written over between steps."""

    ids_B: Tensor
    """int64: the last token of each row, which has no keys yet."""
    lengths_B: Tensor
    """int32: tokens before it, which have."""
    tables_BM: Tensor
    """int32: blocks of each row, with room for one token more."""

    @staticmethod
    def empty(rows: int, blocks: int, spare_block: int, device: torch.device) -> DecodeRows:
        """Rows without tokens, which write into a block of nobody's."""
        return DecodeRows(
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.full((rows, blocks), spare_block, dtype=torch.int32, device=device),
        )


class Decoder(Protocol):
    def __call__(self) -> Tensor:
        """logits_BV after the tokens of its rows, whose keys and values are stored."""


@contextlib.contextmanager
def one_pass_kernels(model: Transformer) -> Iterator[None]:
    """On a GPU, kernels of one pass over memory between the products of the model, for as long as a
    graph of it is captured: run one by one, torch's own start sooner."""
    if not _has_triton():
        yield
        return
    blocks = model.own_blocks
    before = [(block.add_norm, block.attention.own_split) for block in blocks]
    gated = [block.ffn.gated if isinstance(block.ffn, SwiGLU) else None for block in blocks]
    apply_kernels(blocks, "triton")
    try:
        yield
    finally:
        for block, (add_norm, own_split), own_gated in zip(blocks, before, gated, strict=True):
            block.add_norm, block.attention.own_split = add_norm, own_split
            if isinstance(block.ffn, SwiGLU) and own_gated is not None:
                block.ffn.gated = own_gated


def _has_triton() -> bool:
    """Not every build of torch for CUDA comes with it."""
    return importlib.util.find_spec("triton") is not None


def make_decoder(model: Transformer, cache: PagedCache, rows: DecodeRows) -> Decoder:
    """The fastest decoder that can serve this model and so many rows."""
    if is_fusable(model, cache, len(rows.ids_B)):
        return FusedDecoder(model, cache, rows)
    return ModelDecoder(model, cache, rows)


def is_fusable(model: Transformer, cache: PagedCache, rows: int) -> bool:
    device = model.norm.weight.device
    if device.type != "cuda" or cache.keys.scales is not None:
        return False
    config = model.config
    if config.family == "gpt2" or config.out_bias or config.ffn_bias or config.window:
        return False
    # Quantised layers have their own classes.
    layers = [model.head]
    for block in model.own_blocks:
        layers += [block.attention.qkv, block.attention.out, block.ffn.into, block.ffn.down]
    if rows > MAX_ROWS or any(type(layer) is not nn.Linear for layer in layers):
        return False
    return why_not(_shape(config), rows, device, model.head.weight.dtype) is None


def _shape(config: ModelConfig) -> Shape:
    return Shape(
        config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim, config.dim,
        config.ffn_dim, config.ffn_block, config.vocab_size, config.norm_eps,
    )  # fmt: skip


class FusedDecoder:
    def __init__(self, model: Transformer, cache: PagedCache, rows: DecodeRows) -> None:
        layers = []
        for block in model.own_blocks:
            attention = block.attention
            layer = {
                "attention_norm": block.attention_norm.weight,
                "qkv": attention.qkv.weight,
                "out": attention.out.weight,
                "ffn_norm": block.ffn_norm.weight,
                "gate_up": block.ffn.into.weight,
                "down": block.ffn.down.weight,
            }
            if attention.qkv.bias is not None:
                layer["qkv_bias"] = attention.qkv.bias
            if attention.qk_norm:
                layer |= {"q_norm": attention.q_norm.weight, "k_norm": attention.k_norm.weight}
            layers.append(layer)
        weights = {
            "embedding": model.embedding.weight,
            "norm": model.norm.weight,
            "head": model.head.weight,
        }
        self._step = DecodeStep(
            _shape(model.config), layers, weights, cache.keys.stored, cache.values.stored,
            _turns(model), rows.ids_B, rows.lengths_B, rows.tables_BM,
        )  # fmt: skip

    def __call__(self) -> Tensor:
        return self._step()


def _turns(model: Transformer) -> Tensor:
    """cosines and sines of every position, float32 [positions, 2, head_dim / 2]."""
    config, weight = model.config, model.norm.weight
    positions_1T = torch.arange(config.max_seq_len, device=weight.device)[None]
    cos_B1TD, sin_B1TD = rope_tables(
        positions_1T, config.head_dim, config.rope_theta, weight.dtype, config.rope_scaling
    )
    half = config.head_dim // 2
    return torch.stack((cos_B1TD[0, 0, :, :half], sin_B1TD[0, 0, :, half:]), dim=1).contiguous()


class ModelDecoder:
    """The model's own forward; attention follows the tables of its rows."""

    def __init__(self, model: Transformer, cache: PagedCache, rows: DecodeRows) -> None:
        self.model, self.rows = model, rows
        self._view = _View(cache, rows)

    def __call__(self) -> Tensor:
        rows = self.rows
        hidden_B1D = self.model.hidden(rows.ids_B[:, None], rows.lengths_B[:, None], self._view)
        return self.model.logits(hidden_B1D[:, 0])


class _View:
    """The cache as one new token of each row sees it."""

    def __init__(self, cache: PagedCache, rows: DecodeRows) -> None:
        self.cache, self.rows = cache, rows
        config = cache.config
        self._kernel = None
        # The kernel's tiles are powers of two, and products of tensor cores at least 16 wide.
        fits = config.head_dim >= 16 and config.head_dim & (config.head_dim - 1) == 0
        if rows.ids_B.is_cuda and cache.keys.scales is None and fits and _has_triton():
            from llm_core.kernels.paged_attention import PagedAttention

            self._kernel = PagedAttention(
                len(rows.ids_B), config.num_heads, config.num_kv_heads, config.head_dim,
                rows.ids_B.device,
            )  # fmt: skip

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        cache, rows = self.cache, self.rows
        window = cache.config.window_of(layer)
        if self._kernel is not None:
            q_BHD, k_BGD, v_BGD = (_heads_together(x) for x in (q_BHTD, k_BGTD, v_BGTD))
            keys, values = cache.keys.stored[layer], cache.values.stored[layer]
            mixed_BHD = self._kernel(
                q_BHD, k_BGD, v_BGD, keys, values, rows.tables_BM, rows.lengths_B, window
            )
            return mixed_BHD[:, :, None]
        size = cache.block_tokens
        block_B = rows.tables_BM.gather(1, (rows.lengths_B // size).long()[:, None])[:, 0]
        slots_B = block_B * size + rows.lengths_B % size
        cache.keys.write_slots(layer, slots_B.long(), k_BGTD[:, :, 0])
        cache.values.write_slots(layer, slots_B.long(), v_BGTD[:, :, 0])
        blocks = rows.tables_BM.long()
        k_BGKD, v_BGKD = (
            numbers.read((layer, blocks)).flatten(1, 2).transpose(1, 2)
            for numbers in (cache.keys, cache.values)
        )
        return attend_ragged(q_BHTD, k_BGKD, v_BGKD, rows.lengths_B + 1, window)


def _heads_together(x_BHTD: Tensor) -> Tensor:
    """x_BHD of one token, heads one after another."""
    x_BHD = x_BHTD[:, :, 0]
    is_together = x_BHD.stride(1) == x_BHD.shape[2] and x_BHD.stride(2) == 1
    return x_BHD if is_together else x_BHD.contiguous()

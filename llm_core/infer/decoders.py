"""Computes the logits of one new token for each of several sequences, from tensors that stay where
they are: nothing is asked of the device, so a step can be captured in a CUDA graph.

`FusedDecoder` is one kernel for few rows (`llm_core.kernels.decode`), `ModelDecoder` the model
itself over the blocks of a paged cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from llm_core.infer.cache.attention import attend_ragged
from llm_core.infer.cache.paged import PagedCache
from llm_core.infer.cache.tiles import has_kernel, has_triton, heads_together
from llm_core.kernels.decode.step import (
    MAX_ROWS,
    TILE_TOKENS,
    DecodeStep,
    Numbers,
    Shape,
    why_not,
)
from llm_core.model.feed_forward import SwiGLU
from llm_core.model.operations import apply_kernels
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import Block, Transformer
from llm_core.quantize.layers import RoundedLinear

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
    if not has_triton():
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
    if config.family not in ("llama", "qwen2", "qwen3"):
        return False
    if config.out_bias or config.ffn_bias or config.window or config.attention:
        return False
    shape = _shape(model)
    if shape is None or rows > MAX_ROWS or cache.block_tokens % TILE_TOKENS:
        return False
    return why_not(shape, rows, device, model.norm.weight.dtype) is None


def _shape(model: Transformer) -> Shape | None:
    """None where weights are stored in a way, or in several, that the kernel does not read."""
    layers = [layer for block in model.own_blocks for layer in _products(block).values()]
    of_layers, of_head = {_bits(layer) for layer in layers}, _bits(model.head)
    # Scales of groups are those of layers only.
    if len(of_layers) != 1 or None in of_layers or of_head not in (8, 16):
        return None
    config, bits = model.config, of_layers.pop()
    assert bits is not None
    return Shape(
        config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim, config.dim,
        config.ffn_dim, config.ffn_block, config.vocab_size, config.norm_eps, bits, of_head,
    )  # fmt: skip


def _products(block: Block) -> dict[str, nn.Module]:
    attention, ffn = block.attention, block.ffn
    return {"qkv": attention.qkv, "out": attention.out, "gate_up": ffn.into, "down": ffn.down}


def _bits(layer: nn.Module) -> int | None:
    if isinstance(layer, RoundedLinear):
        return {"int8": 8, "int4": 4}.get(layer.format)
    return 16 if type(layer) is nn.Linear else None


def _numbers(layer: nn.Module) -> Numbers:
    if isinstance(layer, RoundedLinear):
        stored = layer.stored
        if stored.offset is None:
            return stored.numbers, stored.scale
        # One copy of both: what a block may ask for is a number of copies, however short.
        return stored.numbers, torch.stack((stored.scale, stored.offset), dim=-1)
    assert isinstance(layer, nn.Linear)
    return layer.weight, None


class FusedDecoder:
    def __init__(self, model: Transformer, cache: PagedCache, rows: DecodeRows) -> None:
        products = [
            {name: _numbers(layer) for name, layer in _products(block).items()}
            for block in model.own_blocks
        ]
        vectors = []
        for block in model.own_blocks:
            attention = block.attention
            vector: dict[str, Tensor | None] = {
                "attention_norm": block.attention_norm.weight,
                "ffn_norm": block.ffn_norm.weight,
                "qkv_bias": attention.qkv.bias,
            }
            if attention.qk_norm:
                vector |= {"q_norm": attention.q_norm.weight, "k_norm": attention.k_norm.weight}
            vectors.append(vector)
        # A rounded table is looked up before the kernel, which then finds row after row.
        self._ids_B, self._table = rows.ids_B, model.embedding
        ids_B, self._looked_up_BD = rows.ids_B, None
        if isinstance(model.embedding, nn.Embedding):
            embedding = model.embedding.weight
        else:
            ids_B = torch.arange(len(rows.ids_B), device=rows.ids_B.device)
            embedding = self._looked_up_BD = model.embedding(rows.ids_B)
        shape = _shape(model)
        assert shape is not None, "is_fusable was asked"
        self._step = DecodeStep(
            shape, products, vectors, embedding, model.norm.weight, _numbers(model.head),
            cache.keys.stored, cache.values.stored, _turns(model), ids_B, rows.lengths_B,
            rows.tables_BM,
        )  # fmt: skip

    def __call__(self) -> Tensor:
        if self._looked_up_BD is not None:
            self._looked_up_BD.copy_(self._table(self._ids_B))
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
        self._view = RowsView(cache, rows)

    def __call__(self) -> Tensor:
        rows = self.rows
        hidden_B1D = self.model.hidden(rows.ids_B[:, None], rows.lengths_B[:, None], self._view)
        return self.model.logits(hidden_B1D[:, 0])


@dataclass(frozen=True)
class Tiles:
    """Several new tokens of a sequence, where rows are tokens and tables those of sequences."""

    sequence_B: Tensor
    """int64: whose table each token follows."""
    tiles_T4: Tensor
    """As `llm_core.kernels.paged_attention` has them."""
    queries: int
    """Most tokens of a tile."""
    usual: int
    """Tiles that usually have tokens."""


class RowsView:
    """The cache as one new token of each row sees it."""

    def __init__(self, cache: PagedCache, rows: DecodeRows, tiles: Tiles | None = None) -> None:
        self.cache, self.rows, self.tiles = cache, rows, tiles
        config, device = cache.config, rows.ids_B.device
        self._kernel = None
        if cache.slides and has_kernel(cache.keys):
            from llm_core.kernels.paged_attention import PagedAttention

            shape = config.num_heads, config.num_kv_heads, config.head_dim, device
            self._kernel = (
                PagedAttention(len(rows.ids_B), *shape)
                if tiles is None
                else PagedAttention(
                    len(tiles.tiles_T4), *shape, queries=tiles.queries, usual_tiles=tiles.usual
                )
            )

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        cache, rows, tiles = self.cache, self.rows, self.tiles
        pattern = cache.patterns[layer]
        if self._kernel is not None:
            q_BHD, k_BGD, v_BGD = (heads_together(x[:, :, 0]) for x in (q_BHTD, k_BGTD, v_BGTD))
            keys, values = cache.keys.stored[layer], cache.values.stored[layer]
            mixed_BHD = self._kernel(
                q_BHD, k_BGD, v_BGD, keys, values, rows.tables_BM, rows.lengths_B, pattern.window,
                tiles and tiles.tiles_T4,
            )  # fmt: skip
            return mixed_BHD[:, :, None]
        size = cache.block_tokens
        tables_BM = rows.tables_BM if tiles is None else rows.tables_BM[tiles.sequence_B]
        block_B = tables_BM.gather(1, (rows.lengths_B // size).long()[:, None])[:, 0]
        slots_B = block_B * size + rows.lengths_B % size
        # All before any attends: tokens of one sequence see those before them.
        cache.keys.write_slots(layer, slots_B.long(), k_BGTD[:, :, 0])
        cache.values.write_slots(layer, slots_B.long(), v_BGTD[:, :, 0])
        blocks = tables_BM.long()
        k_BGKD, v_BGKD = (
            numbers.read((layer, blocks)).flatten(1, 2).transpose(1, 2)
            for numbers in (cache.keys, cache.values)
        )
        return attend_ragged(q_BHTD, k_BGKD, v_BGKD, rows.lengths_B + 1, pattern)

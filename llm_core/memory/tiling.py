"""Runs a feed-forward whose inner width would not fit a tile of its channels at a time, forward and
backward.

The memory-centric tiling of ZeRO-Infinity (Rajbhandari et al., 2021, section 5.1.3): each tile
takes its channels of the inner width through gate, up and down and adds its part of the result.
Nothing of the inner width outlives its tile, and backward recomputes it tile by tile, so what is
kept is the input alone. Weights stay one parameter each, so layouts and checkpoints know nothing of
tiles; what is cast to bfloat16 is a tile of them.

Activations are always cut. Where weights are sharded, they are gathered with their block, or with
`memory.ffn_gather=tiles` a tile at a time, forward and backward, so that a whole matrix never
exists. A tile then takes as many blocks of channels of every process.

Cost: gate and up once more in backward, a quarter of the layer's work; narrower products, which
fill a device worse; results and gradients of the input are sums over tiles, taken in float32 or
better. Channels lie in blocks (llm_core.model.fused), of which a tile has some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from llm_core.memory.chunked_loss import working_copies
from llm_core.memory.config import MemoryConfig
from llm_core.model.experts.router import as_it_is
from llm_core.model.feed_forward import FeedForward
from llm_core.model.transformer import Transformer

# B batch · T tokens · D model width · F channels of a tile

Exchange = Callable[[Tensor], Tensor]


class Shards(Protocol):
    """How processes share rows of weights."""

    number: int

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of all processes, in the dtype of products."""

    def reduce(self, gradient: Tensor) -> Tensor:
        """This process's rows of the sum."""

    def like(self, weight: Tensor, rows: Tensor) -> Tensor:
        """Rows as a weight that is shared in the same way."""


def apply_tiling(
    model: Transformer,
    config: MemoryConfig,
    enter: Exchange = as_it_is,
    leave: Exchange = as_it_is,
    shards: Shards | None = None,
) -> None:
    """Let the feed-forward of every block of this process run in tiles.

    enter, leave: how tensor parallelism takes the residual stream into a layer, and addends of it
    out. shards: where weights are gathered tile by tile; None: they are there.
    """
    if config.ffn_tiles > 1:
        for block in model.own_blocks:
            block.ffn.own_way = Tiles(config.ffn_tiles, enter, leave, shards)


@dataclass(frozen=True)
class Tiles:
    """(feed-forward, or this process's blocks of its channels; x_BTD) → its output."""

    number: int
    enter: Exchange
    leave: Exchange
    shards: Shards | None = None

    def __call__(self, ffn: FeedForward, x_BTD: Tensor) -> Tensor:
        into, down = ffn.into, ffn.down
        weights = [weight for weight in (into.weight, down.weight, into.bias) if weight is not None]
        x_BTD = self.enter(x_BTD)
        applied = _Tiled.apply if self.shards is None else partial(_Gathered.apply, self.shards)
        out_BTD = self.leave(cast(Tensor, applied(ffn, self.number, x_BTD, *weights)))
        return out_BTD if down.bias is None else out_BTD + down.bias.to(out_BTD.dtype)


def _tiles(ffn: FeedForward, number: int, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Views of a tile of the weights (into the inner width, out of it, bias), or of gradients."""
    num_blocks = tensors[1].shape[1] // ffn.block
    rows = tensors[0].shape[0] // num_blocks
    for tile in range(number):
        begin, end = (n * num_blocks // number for n in (tile, tile + 1))
        inner = slice(begin * rows, end * rows)
        outer = tensors[1][:, begin * ffn.block : end * ffn.block]
        yield [tensors[0][inner], outer, *(bias[inner] for bias in tensors[2:])]


def _part(
    ffn: FeedForward, x_BTD: Tensor, into: Tensor, down: Tensor, bias: Tensor | None = None
) -> Tensor:
    """What the channels of a tile add to the output."""
    return F.linear(ffn.activate(F.linear(x_BTD, into, bias)), down)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ffn: FeedForward, number: int, x_BTD: Tensor, *weights: Tensor) -> Tensor:
        kind = x_BTD.device.type
        ctx.ffn, ctx.number = ffn, number
        ctx.arithmetic = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.save_for_backward(x_BTD, *weights)
        return _sum(
            _part(ffn, x_BTD, *working_copies(tile)) for tile in _tiles(ffn, number, weights)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_BTD, *weights = ctx.saved_tensors
        found = [torch.zeros_like(weight) for weight in weights]
        of_tiles = (_tiles(ctx.ffn, ctx.number, tensors) for tensors in (weights, found))

        def parts() -> Iterator[Tensor]:
            for tile, gradients in zip(*of_tiles, strict=True):
                with torch.enable_grad(), torch.autocast(*ctx.arithmetic):
                    x, *leaves = (
                        tensor.requires_grad_()
                        for tensor in (x_BTD.detach(), *working_copies(tile))
                    )
                    part = _part(ctx.ffn, x, *leaves)
                grad, *others = torch.autograd.grad(part, (x, *leaves), grads[0])
                for gradient, other in zip(gradients, others, strict=True):
                    gradient.copy_(other)
                yield grad

        return None, None, _sum(parts()), *found


class _Gathered(torch.autograd.Function):
    """As `_Tiled`, of weights without biases that are DTensors by rows."""

    @staticmethod
    def forward(
        ctx: Any, shards: Shards, ffn: FeedForward, number: int, x_BTD: Tensor, *weights: Tensor
    ) -> Tensor:
        kind = x_BTD.device.type
        ctx.shards, ctx.ffn, ctx.number = shards, ffn, number
        ctx.arithmetic = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.save_for_backward(x_BTD, *weights)
        rows = [_rows_of(weight) for weight in weights]
        return _sum(
            _part(ffn, x_BTD, *map(shards.gather, tile))
            for tile in _shared_tiles(ffn, number, rows, shards)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        shards: Shards = ctx.shards
        x_BTD, *weights = ctx.saved_tensors
        rows = [_rows_of(weight) for weight in weights]
        found = [torch.zeros_like(each) for each in rows]
        of_tiles = (_shared_tiles(ctx.ffn, ctx.number, each, shards) for each in (rows, found))

        def parts() -> Iterator[Tensor]:
            for tile, gradients in zip(*of_tiles, strict=True):
                with torch.enable_grad(), torch.autocast(*ctx.arithmetic):
                    leaves = [x_BTD.detach(), *map(shards.gather, tile)]
                    part = _part(ctx.ffn, *(leaf.requires_grad_() for leaf in leaves))
                grad, *others = torch.autograd.grad(part, leaves, grads[0])
                for gradient, other in zip(gradients, others, strict=True):
                    gradient.copy_(shards.reduce(other).view(gradient.shape))
                yield grad

        total = _sum(parts())
        own = (shards.like(weight, each) for weight, each in zip(weights, found, strict=True))
        return None, None, None, total, *own


def _rows_of(weight: Tensor) -> Tensor:
    assert isinstance(weight, DTensor)
    return weight.to_local()


def _shared_tiles(
    ffn: FeedForward, number: int, rows: Sequence[Tensor], shards: Shards
) -> Iterator[list[Tensor]]:
    """As `_tiles`, of this process's rows; columns of `down` are those that all bring to a tile."""
    into, down = rows
    num_blocks = down.shape[1] // ffn.block // shards.number
    height = into.shape[0] // num_blocks
    columns = down.unflatten(1, (shards.number, num_blocks, ffn.block))
    for tile in range(number):
        begin, end = (n * num_blocks // number for n in (tile, tile + 1))
        yield [into[begin * height : end * height], columns[:, :, begin:end]]


def _sum(parts: Iterator[Tensor]) -> Tensor:
    """In float32 or better, given back in the dtype of the parts."""
    first = next(parts)
    total = first.to(torch.promote_types(first.dtype, torch.float32))
    for part in parts:
        total += part
    return total.to(first.dtype)

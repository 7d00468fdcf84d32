"""Runs a feed-forward whose inner width would not fit a tile of its channels at a time, forward and
backward.

The memory-centric tiling of ZeRO-Infinity (Rajbhandari et al., 2021, section 5.1.3), in the form
that leaves the weights whole: each tile takes its channels of the inner width through gate, up and
down and adds its part of the result. Nothing of the inner width outlives its tile, and backward
recomputes it tile by tile, so what is kept is the input alone. Weights stay one parameter each, so
layouts and checkpoints know nothing of tiles; what is cast to bfloat16 is a tile of them.

Cost: gate and up once more in backward, a quarter of the layer's work; narrower products, which
fill a device worse; results and gradients of the input are sums over tiles, taken in float32 or
better. Channels lie in blocks (llm_core.model.fused), of which a tile has some. Left out: weights
gathered tile by tile under FSDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.memory.chunked_loss import working_copies
from llm_core.memory.config import MemoryConfig
from llm_core.model.feed_forward import FeedForward
from llm_core.model.transformer import Transformer, as_it_is

# B batch · T tokens · D model width · F channels of a tile

Exchange = Callable[[Tensor], Tensor]


def apply_tiling(
    model: Transformer,
    config: MemoryConfig,
    enter: Exchange = as_it_is,
    leave: Exchange = as_it_is,
) -> None:
    """Let the feed-forward of every block of this process run in tiles.

    enter, leave: how tensor parallelism takes the residual stream into a layer, and addends of it
    out.
    """
    if config.ffn_tiles > 1:
        for block in model.own_blocks:
            block.ffn.own_way = Tiles(config.ffn_tiles, enter, leave)


@dataclass(frozen=True)
class Tiles:
    """(feed-forward, or this process's blocks of its channels; x_BTD) → its output."""

    number: int
    enter: Exchange
    leave: Exchange

    def __call__(self, ffn: FeedForward, x_BTD: Tensor) -> Tensor:
        into, down = ffn.into, ffn.down
        weights = [weight for weight in (into.weight, down.weight, into.bias) if weight is not None]
        x_BTD = self.enter(x_BTD)
        out_BTD = self.leave(cast(Tensor, _Tiled.apply(ffn, self.number, x_BTD, *weights)))
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


def _sum(parts: Iterator[Tensor]) -> Tensor:
    """In float32 or better, given back in the dtype of the parts."""
    first = next(parts)
    total = first.to(torch.promote_types(first.dtype, torch.float32))
    for part in parts:
        total += part
    return total.to(first.dtype)

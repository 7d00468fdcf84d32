"""Shares each layer among a grid of processes: every one has a block of each matrix, and blocks of the
activations between them.

Axes of the mesh by weights: `tp` tells columns apart, `tp_row` rows, `tp_depth` depths. Attention is
of whole sequences and heads, so tokens are cut between sequences; a micro batch that does not divide
is filled up with rows that count for nothing. Vectors (norms, biases, positions) are whole on all, a
ten-thousandth of a model; a process finds the gradient of its own features and tokens, and these are
summed when a step's micro batches are through. So is, in 2.5d, that of matrices over the depths: 2.5d is
data parallelism of squares that share one micro batch.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.nn import functional as F

from llm_core.data.batch import IGNORED
from llm_core.model.loss import CrossEntropy
from llm_core.model.norm import LayerNorm
from llm_core.model.transformer import Transformer
from llm_core.parallel.collectives import gather
from llm_core.parallel.cuts import cut_dim, part_of
from llm_core.parallel.grid.cube import Cube
from llm_core.parallel.grid.layers import (
    GridEmbedding,
    GridInto,
    GridLayerNorm,
    GridOut,
    GridPositions,
    GridRMSNorm,
    Products,
    Share,
)
from llm_core.parallel.grid.shape import GridShape
from llm_core.parallel.grid.summa import Summa
from llm_core.parallel.tensor import cut_weights
from llm_core.parallel.vocabulary import token_losses

# B rows of a micro batch · b rows of this process · T tokens

COLUMN, ROW, DEPTH = "tp", "tp_row", "tp_depth"


@dataclass(frozen=True, eq=False)
class GridShards:
    """This process in a grid. group: all of the grid; mesh: its three axes."""

    group: dist.ProcessGroup
    mesh: DeviceMesh
    shape: GridShape

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This process's part of the weight of this name, a view."""
        for axis, placement in self.placements(name):
            if isinstance(placement, Shard):
                sizes = whole.shape[placement.dim], self._rank(axis), self._size(axis)
                run = part_of(*sizes)
                whole = whole.narrow(placement.dim, run.start, len(run))
        return whole

    def placements(self, name: str) -> tuple[tuple[str, Placement], ...]:
        """How the axes cut the weight of this name, the first cut first."""
        inner = inner_dim(name)
        if inner is None:
            return tuple((axis, Replicate()) for axis in (COLUMN, ROW, DEPTH))
        width = Shard(1 - inner)
        depth = width if self.shape.kind == "3d" else Replicate()
        return (COLUMN, Shard(inner)), (ROW, width), (DEPTH, depth)

    @property
    def cutting(self) -> list[dist.ProcessGroup]:
        """Groups that have different parts of a matrix."""
        axes = (COLUMN, ROW, DEPTH) if self.shape.kind == "3d" else (COLUMN, ROW)
        return [self._group(axis) for axis in axes]

    def unsummed(self, name: str) -> dist.ProcessGroup | None:
        """The group over which backward has not summed the gradient of this name."""
        if inner_dim(name) is None:
            return self.group
        return self._group(DEPTH) if self.shape.kind == "2.5d" else None

    def loss(self, vocab_size: int, z_loss: float = 0.0) -> CrossEntropy:
        """The loss from logits of this column's part of the vocabulary."""
        group, first_id = self._group(COLUMN), self._first_id(vocab_size)
        return partial(token_losses, z_loss=z_loss, first_id=first_id, group=group)

    def apply(self, model: Transformer) -> None:
        """Cut the weights of a model and let its layers exchange. Weights become meta tensors."""
        cut_weights(model, self.part)
        products, width, inner = self._products, self._width, Share(self._group(COLUMN))
        for block in model.own_blocks:
            block.attention_norm = self._norm(block.attention_norm)
            block.attention.qkv = GridInto(block.attention.qkv, products, inner)
            block.attention.out = GridOut(block.attention.out, products, width)
            block.ffn_norm, ffn = self._norm(block.ffn_norm), block.ffn
            assert not hasattr(ffn, "experts"), "check_grid_settings has refused them"
            setattr(ffn, ffn.into_name, GridInto(ffn.into, products, inner))
            ffn.down = GridOut(ffn.down, products, width)  # type: ignore[assignment]
        first_id = self._first_id(model.config.vocab_size)
        model.embedding = GridEmbedding(model.embedding.weight, first_id, products)  # type: ignore[assignment]
        if model.config.positions == "learned":
            model.positions = GridPositions(model.positions.weight, width, products)  # type: ignore[assignment]
        model.norm = self._norm(model.norm)
        model.head = GridInto(model.head, products, inner)  # type: ignore[assignment]
        model.forward = partial(self._forward, model.forward)  # type: ignore[method-assign]

    def _forward(
        self,
        forward: Callable[..., tuple[Tensor, Tensor]],
        ids_BT: Tensor,
        *,
        targets_BT: Tensor,
        documents_BK: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As that of the model, which sees the rows of this process; losses_BT of all rows."""
        documents_bK = None if documents_BK is None else self._own_rows(documents_BK, 0)
        loss, losses_bT = forward(
            self._ids(ids_BT),
            documents_BK=documents_bK,
            targets_BT=self._own_rows(targets_BT, IGNORED),
        )
        with torch.no_grad():
            losses_BT = gather(gather(losses_bT, 0, self._group(ROW)), 0, self._group(DEPTH))
        return loss, losses_BT[: len(ids_BT)]

    def _ids(self, ids_BT: Tensor) -> Tensor:
        """What the embedding takes: in a cube those of all of its depth."""
        if self.shape.kind == "3d":
            return self._filled(ids_BT, 0).chunk(self.shape.depth)[self._rank(DEPTH)]
        return self._own_rows(ids_BT, 0)

    def _own_rows(self, x_BT: Tensor, filling: int) -> Tensor:
        """Of the tokens of this process's inner activations."""
        number = self._rank(DEPTH) * self.shape.side + self._rank(ROW)
        return self._filled(x_BT, filling).chunk(self.shape.token_parts)[number]

    def _filled(self, x_BT: Tensor, filling: int) -> Tensor:
        return F.pad(x_BT, (0, 0, 0, -len(x_BT) % self.shape.token_parts), value=filling)

    def _norm(self, norm: nn.Module) -> nn.Module:
        if isinstance(norm, LayerNorm):
            return GridLayerNorm(norm, self._width)
        return GridRMSNorm(norm, self._width)

    @property
    def _width(self) -> Share:
        """Features of the stream: those of columns, as sums leave them there; in a cube of rows."""
        return Share(self._group(ROW if self.shape.kind == "3d" else COLUMN))

    @cached_property
    def _products(self) -> Products:
        if self.shape.kind == "3d":
            return Cube(self._group(COLUMN), self._group(ROW), self._group(DEPTH))
        return Summa(self._group(COLUMN), self._group(ROW))

    def _first_id(self, vocab_size: int) -> int:
        return part_of(vocab_size, self._rank(COLUMN), self.shape.side).start

    def _group(self, axis: str) -> Any:
        return self.mesh.get_group(axis)

    def _rank(self, axis: str) -> int:
        return self.mesh.get_local_rank(axis)

    def _size(self, axis: str) -> int:
        return dist.get_world_size(self._group(axis))


def inner_dim(name: str) -> int | None:
    """The dim of heads, channels or ids of a matrix; None of a vector, and of positions."""
    return cut_dim(name) if name.endswith(".weight") else None

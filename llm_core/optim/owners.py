"""Computes on whole matrices that processes share by rows: each owns some of them; pieces go there
and come back.

Matrix i belongs to process i mod n of the n that share rows. Tensor-parallel processes of one owner
gather what each has of a matrix and all compute the same. Without sharing, every process has every
matrix and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.compat import all_gather_single
from llm_core.optim.pieces import Piece
from llm_core.parallel.cuts import cut_dim, part_of
from llm_core.parallel.grid.shards import GridShards
from llm_core.parallel.layout import Layout
from llm_core.parallel.tensor import TensorShards


class Owners:
    """pieces: of matrices, whole in rows or in equal runs of rows, as FSDP cuts them."""

    def __init__(self, layout: Layout, pieces: Sequence[Piece], shares_rows: bool) -> None:
        self._names = [piece.name for piece in pieces]
        assert not isinstance(layout.tensor, GridShards), "check_grid_settings has refused them"
        self._tensor: TensorShards | None = layout.tensor
        self._group: Any = None
        self._rank, self._size = 0, 1
        if shares_rows:
            assert layout.mesh is not None
            self._group = layout.mesh.get_group("dp_shard")
            self._rank, self._size = dist.get_rank(self._group), dist.get_world_size(self._group)
        # What all of a row-sharing group hold together: the matrix, or its tensor-parallel part.
        self._shapes = [piece.place.cut_shape for piece in pieces]

    def apply(
        self, function: Callable[[dict[int, Tensor]], dict[int, Tensor]], pieces: Sequence[Tensor]
    ) -> list[Tensor]:
        """The pieces of what `function` makes of whole matrices, given by index in `pieces`."""
        whole = self._gather_parts(self._to_owners(pieces))
        return self._from_owners(self._cut_parts(function(whole)), pieces)

    def _owned_by(self, rank: int) -> range:
        return range(rank, len(self._shapes), self._size)

    def _num_rows(self, index: int, rank: int) -> int:
        return len(part_of(self._shapes[index][0], rank, self._size))

    def _to_owners(self, pieces: Sequence[Tensor]) -> dict[int, Tensor]:
        if self._size == 1:
            return dict(enumerate(pieces))
        sent = [_flat([pieces[i] for i in self._owned_by(rank)], pieces[0]) for rank in self._all]
        lengths = [self._length(self._owned_by(self._rank), rank) for rank in self._all]
        by_rank = [
            list(self._split(chunk, rank))
            for rank, chunk in enumerate(self._exchange(sent, lengths))
        ]
        return {
            index: torch.cat([parts[n] for parts in by_rank])
            for n, index in enumerate(self._owned_by(self._rank))
        }

    def _from_owners(self, whole: dict[int, Tensor], pieces: Sequence[Tensor]) -> list[Tensor]:
        if self._size == 1:
            return [whole[i] for i in range(len(pieces))]
        mine = list(self._owned_by(self._rank))
        sent = [
            _flat([rows_of(whole[i], rank, self._size) for i in mine], pieces[0])
            for rank in self._all
        ]
        chunks = self._exchange(
            sent, [self._length(self._owned_by(rank), self._rank) for rank in self._all]
        )
        found: dict[int, Tensor] = {}
        for owner, chunk in enumerate(chunks):
            indices = list(self._owned_by(owner))
            for index, flat in zip(
                indices, chunk.split([pieces[i].numel() for i in indices]), strict=True
            ):
                found[index] = flat.view_as(pieces[index])
        return [found[i] for i in range(len(pieces))]

    @property
    def _all(self) -> range:
        return range(self._size)

    def _length(self, indices: range, rank: int) -> int:
        """Elements of the pieces that a process holds of some matrices."""
        return sum(self._num_rows(i, rank) * self._shapes[i][1] for i in indices)

    def _split(self, chunk: Tensor, rank: int) -> list[Tensor]:
        """The pieces of this owner's matrices that a process sent."""
        shapes = [(self._num_rows(i, rank), self._shapes[i][1]) for i in self._owned_by(self._rank)]
        return [
            flat.view(shape)
            for flat, shape in zip(chunk.split([r * c for r, c in shapes]), shapes, strict=True)
        ]

    def _exchange(self, sent: list[Tensor], lengths: list[int]) -> Sequence[Tensor]:
        received = sent[0].new_empty(sum(lengths))
        dist.all_to_all_single(
            received, torch.cat(sent), lengths, [len(chunk) for chunk in sent], group=self._group
        )
        return received.split(lengths)

    def _gather_parts(self, parts: dict[int, Tensor]) -> dict[int, Tensor]:
        """Whole matrices from the parts of tensor-parallel processes, in one exchange."""
        cut = [index for index in parts if cut_dim(self._names[index]) is not None]
        if self._tensor is None or not cut:
            return parts
        flat = torch.cat([parts[index].flatten() for index in cut])
        everyone = flat.new_empty(self._tensor.size * len(flat))
        all_gather_single(everyone, flat, group=self._tensor.group)
        by_rank = [
            chunk.split([parts[i].numel() for i in cut])
            for chunk in everyone.view(self._tensor.size, -1)
        ]
        joined = {}
        for n, index in enumerate(cut):
            dim = cut_dim(self._names[index])
            assert dim is not None
            joined[index] = torch.cat(
                [chunks[n].view_as(parts[index]) for chunks in by_rank], dim=dim
            )
        return {index: joined.get(index, part) for index, part in parts.items()}

    def _cut_parts(self, whole: dict[int, Tensor]) -> dict[int, Tensor]:
        if self._tensor is None:
            return whole
        return {
            index: self._tensor.cut(self._names[index], matrix) for index, matrix in whole.items()
        }


def rows_of(tensor: Tensor, rank: int, size: int) -> Tensor:
    """The rows of one process, a view: equal runs of dim 0; the last may be short or empty."""
    part = part_of(len(tensor), rank, size)
    return tensor[part.start : part.stop]


def _flat(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([*(tensor.flatten() for tensor in tensors), like.new_empty(0)])

"""Locates a tensor of this process in its whole weight, for checkpoints, exports and whole-matrix
optimizers.

FSDP cuts what tensor parallelism has left, so where both cut rows the rows of a process are not the
ones that equal runs of the whole weight would give: DTensor calls that a strided shard.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from llm_core.compat import StridedShard, dtensor_of
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer, global_name
from llm_core.parallel.layout import Layout


@dataclass(frozen=True)
class Place:
    """Where the pieces of one weight lie; without axes every process has it whole.

    shape, cut_shape: of the weight, and of what tensor parallelism leaves of it here. data, tensor:
    (axis of the mesh, placement) of the pieces that are made of that, and of that itself.
    """

    shape: torch.Size
    cut_shape: torch.Size
    mesh: DeviceMesh | None = None
    data: tuple[tuple[str, Placement], ...] = ()
    tensor: tuple[tuple[str, Placement], ...] = ()

    def view(self, piece: Tensor) -> Tensor:
        """This process's piece as part of the whole tensor; shares memory with the piece."""
        data = self.data
        if self.mesh is not None and any(p.is_shard(0) for _, p in self.tensor):
            # FSDP has cut rows that tensor parallelism cut before.
            factor = math.prod(self.mesh[axis].size() for axis, p in self.tensor if p.is_shard(0))
            data = tuple(
                (axis, StridedShard(0, split_factor=factor) if p.is_shard(0) else p)
                for axis, p in data
            )
        return self._join(piece, (*data, *self.tensor), self.shape, stays=True)

    def whole(self, piece: Tensor) -> Tensor:
        """The whole of every process's piece. All that hold the weight must call it."""
        for axes, shape in ((self.data, self.cut_shape), (self.tensor, self.shape)):
            joined = self._join(piece, axes, shape)
            piece = joined.full_tensor() if isinstance(joined, DTensor) else joined
        return piece

    def _join(
        self,
        piece: Tensor,
        axes: tuple[tuple[str, Placement], ...],
        shape: torch.Size,
        stays: bool = False,
    ) -> Tensor:
        """stays: in main memory, though processes meet through GPUs; else it goes there."""
        if not axes:
            return piece
        assert self.mesh is not None
        names = tuple(axis for axis, _ in axes)
        mesh = self.mesh[names if len(names) > 1 else names[0]]
        if stays and piece.device.type != mesh.device_type:
            return dtensor_of(piece, mesh, [p for _, p in axes], shape)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            piece, mesh, [p for _, p in axes], run_check=False, shape=shape, stride=stride
        )


@functools.cache
def whole_shapes(config: ModelConfig) -> Mapping[str, torch.Size]:
    """Of all weights by name, both names of a tied one."""
    with torch.device("meta"):
        return {name: weight.shape for name, weight in Transformer(config).state_dict().items()}


def place_of(layout: Layout, name: str, weight: nn.Parameter, shape: torch.Size) -> Place:
    """The place of the pieces of a weight of the model. shape: of the whole weight."""
    data: tuple[tuple[str, Placement], ...] = ()
    if isinstance(weight, DTensor):
        axes = ("dp_replicate", "dp_shard")[-len(weight.placements) :]
        data = tuple(zip(axes, weight.placements, strict=True))
    tensor: tuple[tuple[str, Placement], ...] = ()
    if layout.tensor is not None:
        tensor = layout.tensor.placements(name)
    return Place(shape, weight.shape, layout.mesh, data, tensor)


def placed_weights(layout: Layout) -> Iterator[tuple[str, nn.Parameter, Place]]:
    """(global name, parameter, place) of each weight; a copy of a tied one has the first name."""
    shapes = whole_shapes(layout.bare.config)
    for name, weight in layout.bare.named_parameters():
        found = global_name(layout.bare.config, name)
        yield found, weight, place_of(layout, found, weight, shapes[found])


def is_cut(placements: Iterable[tuple[str, Placement]]) -> bool:
    """Whether some axis cuts."""
    return any(placement.is_shard() for _, placement in placements)


def local(tensor: Tensor) -> Tensor:
    """The piece of this process, sharing memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

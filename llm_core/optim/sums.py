"""Sums over the rows, the columns or all of a weight whose pieces lie on several processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Placement, Replicate, Shard

from llm_core.parallel.places import Place


def sharing(place: Place, *dims: int) -> list[Any]:
    """The process groups over which any of these dims of a weight is cut."""
    if place.mesh is None:
        return []
    return [
        place.mesh.get_group(axis)
        for axis, p in (*place.data, *place.tensor)
        if any(p.is_shard(dim) for dim in dims)
    ]


def along(place: Place, dim: int) -> Place:
    """Where the pieces of a vector lie that has a number for each index of one dim of a matrix."""
    data, tensor = (
        tuple((axis, _along(p, dim)) for axis, p in axes) for axes in (place.data, place.tensor)
    )
    return Place(
        torch.Size([place.shape[dim]]), torch.Size([place.cut_shape[dim]]), place.mesh, data, tensor
    )


def _along(placement: Placement, dim: int) -> Placement:
    return Shard(0) if placement.is_shard(dim) else Replicate()


def sum_over(addends: Sequence[tuple[Tensor, Sequence[Any]]]) -> list[Tensor]:
    """Each tensor summed over each of its process groups, with one exchange per group. All
    processes must give the like list."""
    sums = [tensor for tensor, _ in addends]
    members: dict[Any, list[int]] = defaultdict(list)
    for index, (_, groups) in enumerate(addends):
        for group in groups:
            members[group].append(index)
    for group, indices in members.items():
        flat = torch.cat([sums[i].flatten() for i in indices])
        dist.all_reduce(flat, group=group)
        for i, summed in zip(indices, flat.split([sums[i].numel() for i in indices]), strict=True):
            sums[i] = summed.view_as(sums[i])
    return sums

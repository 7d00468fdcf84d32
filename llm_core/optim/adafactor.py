"""Adafactor (Shazeer and Stern, 2018, algorithms 4 and 5): second moments of a matrix from its rows
and columns alone.

A matrix of R x C keeps R + C numbers, a vector its own second moments; there is no first moment.
Updates are relative to the root mean square of the weight, and their own is limited. Rows, columns
and root mean squares are those of the whole weight under every layout: what processes hold of the
sums is added over those that share the weight, in one exchange per axis for all weights. Cost: two
such rounds of a few numbers per row and column; gradients are read three times, so that only one
weight at a time needs memory for its update. Left out: momentum, and the relative step size, for
which schedules stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard

from llm_core.optim.config import OptimConfig
from llm_core.optim.method import State, Update
from llm_core.optim.pieces import Piece, write_unless
from llm_core.parallel.places import Place

# R rows · C columns of the piece of this process


class Adafactor:
    @torch.no_grad()
    def __init__(self, pieces: Sequence[Piece], config: OptimConfig) -> None:
        self._pieces, self._config = pieces, config.adafactor
        self._moments: list[dict[str, Tensor]] = []
        for data in (piece.data for piece in pieces):
            if data.ndim == 2:
                rows_R, columns_C = map(data.new_zeros, data.shape)
                self._moments.append({"rows": rows_R, "columns": columns_C})
            else:
                self._moments.append({"squares": torch.zeros_like(data, requires_grad=False)})

    def states(self) -> Iterator[State]:
        for piece, moments in zip(self._pieces, self._moments, strict=True):
            for kind, tensor in moments.items():
                place = piece.place
                if kind != "squares":
                    place = _along(place, 0 if kind == "rows" else 1)
                yield State(piece, kind, tensor, place)

    def update(self, step: Update) -> None:
        config, pieces = self._config, self._pieces
        # 1 - beta2 of step t (section 7 of the paper).
        new_part = step.number**-config.decay_power

        sums = _sum_over([addend for i in range(len(pieces)) for addend in self._addends(i, step)])
        found = iter(sums)
        sizes, moments = [], []
        for piece, old in zip(pieces, self._moments, strict=True):
            sizes.append((next(found) / piece.place.shape.numel()).sqrt().clamp(min=config.min_rms))
            moments.append(self._moved(piece, old, new_part, step, found))

        addends = [
            (_change(piece, moment, step).square().sum(), _sharing(piece.place, 0, 1))
            for piece, moment in zip(pieces, moments, strict=True)
        ]
        for piece, old, moment, size, square in zip(
            pieces, self._moments, moments, sizes, _sum_over(addends), strict=True
        ):
            data, lr = piece.data, step.lr * piece.treatment.lr_factor
            # Updates are clipped by their root mean square (section 6).
            limit = ((square / piece.place.shape.numel()).sqrt() / config.clip_rms).clamp(min=1)
            change = _change(piece, moment, step).mul_(size / limit)
            decayed = data * (1 - lr * piece.treatment.weight_decay)
            write_unless(step.bad, data, decayed.sub_(change, alpha=lr))
            for kind, tensor in old.items():
                write_unless(step.bad, tensor, moment[kind])

    def _addends(self, index: int, step: Update) -> list[tuple[Tensor, list[Any]]]:
        """This process's addends: squares of the weight, and of its gradient by row and column."""
        piece, moments = self._pieces[index], self._moments[index]
        everyone = _sharing(piece.place, 0, 1)
        addends: list[tuple[Tensor, list[Any]]] = [(piece.data.square().sum(), everyone)]
        if "rows" in moments:
            square_RC = (piece.grad / step.divisor).square_().add_(self._config.eps_square)
            addends += [
                (square_RC.sum(dim=1), _sharing(piece.place, 1)),
                (square_RC.sum(dim=0), _sharing(piece.place, 0)),
                (square_RC.sum(), everyone),
                (moments["rows"].sum(), _sharing(piece.place, 0)),
            ]
        return addends

    def _moved(
        self,
        piece: Piece,
        old: dict[str, Tensor],
        new_part: Tensor,
        step: Update,
        sums: Iterator[Tensor],
    ) -> dict[str, Tensor]:
        """The moments after this step; for a matrix also the mean that both factors share."""
        if "squares" in old:
            square = (piece.grad / step.divisor).square_().add_(self._config.eps_square)
            return {"squares": old["squares"].lerp(square, new_part.to(square.dtype))}
        num_rows, num_columns = piece.place.shape
        weight = new_part.to(old["rows"].dtype)
        rows_R, columns_C = next(sums) / num_columns, next(sums) / num_rows
        overall, old_overall = next(sums) / (num_rows * num_columns), next(sums) / num_rows
        return {
            "rows": old["rows"].lerp(rows_R, weight),
            "columns": old["columns"].lerp(columns_C, weight),
            "overall": old_overall.lerp(overall, weight),
        }


def _change(piece: Piece, moments: dict[str, Tensor], step: Update) -> Tensor:
    """The gradient over the root of its second moments."""
    grad = piece.grad / step.divisor
    if "squares" in moments:
        return grad.mul_(moments["squares"].rsqrt())
    # Rows x columns / mean: the estimate of rank one (section 3).
    return grad.mul_((moments["rows"] / moments["overall"]).rsqrt()[:, None]).mul_(
        moments["columns"].rsqrt()
    )


def _sharing(place: Place, *dims: int) -> list[Any]:
    """The process groups over which any of these dims of a weight is cut."""
    if place.mesh is None:
        return []
    return [
        place.mesh.get_group(axis)
        for axis, p in (*place.data, *place.tensor)
        if any(p.is_shard(dim) for dim in dims)
    ]


def _along(place: Place, dim: int) -> Place:
    """Where the pieces of a vector lie that has a number for each index of one dim of a matrix."""
    data, tensor = (
        tuple((axis, Shard(0) if p.is_shard(dim) else Replicate()) for axis, p in axes)
        for axes in (place.data, place.tensor)
    )
    return Place(
        torch.Size([place.shape[dim]]), torch.Size([place.cut_shape[dim]]), place.mesh, data, tensor
    )


def _sum_over(addends: Sequence[tuple[Tensor, Sequence[Any]]]) -> list[Tensor]:
    """Each tensor summed over its process groups, in one exchange per group. Collective."""
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

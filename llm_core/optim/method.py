"""Defines an update rule, so that an optimizer holds several and a checkpoint knows none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from llm_core.parallel.places import Place

AVERAGE = "average"
"""Kind of state that can take the place of weights."""


@dataclass(frozen=True)
class Update:
    """One step, as the guard has judged it. Scalars are on the device."""

    lr: float
    number: Tensor
    """Float64 number of this update, counted from 1; that of the last one in a skipped step."""
    divisor: Tensor
    """Float32 scalar to divide gradients by: what clipping and the loss scale ask for."""
    bad: Tensor
    """Whether to skip: all state must stay bitwise as it is, whatever the gradients are."""


class Named(Protocol):
    """What states need of the piece of a weight (`llm_core.optim.pieces`)."""

    @property
    def name(self) -> str: ...

    @property
    def data(self) -> Tensor: ...


class Placed(Named, Protocol):
    """What an average needs besides."""

    @property
    def place(self) -> Place: ...


@dataclass(frozen=True, eq=False)
class State:
    """What an optimizer keeps for a weight: this process's piece, and its place in the whole."""

    weight: Named
    kind: str
    piece: Tensor
    place: Place


def own_state(mesh: DeviceMesh | None, piece: Named, kind: str, tensor: Tensor) -> State:
    """State of which each process with equal weights has its own; the whole has a row for each."""
    assert mesh is not None
    shape = torch.Size((mesh["dp_shard"].size(), *tensor.shape))
    place = Place(shape, shape, mesh, (("dp_shard", Shard(0)),))
    return State(piece, kind, tensor[None], place)


class Method(Protocol):
    """An update rule with its state, over some pieces."""

    def update(self, step: Update) -> None:
        """Change the pieces. Every process must call it."""

    def states(self) -> Iterator[State]:
        """All that must be saved."""


class Elsewhere:
    """The state of weights that other processes update, as it is saved: a rule that updates
    nothing."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def update(self, step: Update) -> None:
        pass

    def states(self) -> Iterator[State]:
        return self._method.states()

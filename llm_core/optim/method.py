"""Defines an update rule, so that an optimizer holds several and a checkpoint knows none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from llm_core.optim.pieces import Piece
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


@dataclass(frozen=True, eq=False)
class State:
    """What an optimizer keeps for a weight: this process's piece, and its place in the whole."""

    weight: Piece
    kind: str
    piece: Tensor
    place: Place


class Method(Protocol):
    """An update rule with its state, over some pieces."""

    def update(self, step: Update) -> None:
        """Change the pieces. Every process must call it."""

    def states(self) -> Iterator[State]:
        """All that must be saved."""

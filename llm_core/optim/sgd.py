"""Updates by plain gradient descent, without state: it shows errors of gradients as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_core.optim.method import State, Update
from llm_core.optim.pieces import Piece, write_unless


class Sgd:
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces

    def states(self) -> Iterator[State]:
        yield from ()

    def update(self, step: Update) -> None:
        for piece in self._pieces:
            lr, data = step.lr * piece.treatment.lr_factor, piece.data
            decayed = data * (1 - lr * piece.treatment.weight_decay)
            write_unless(step.bad, data, decayed.sub_(piece.grad / step.divisor * lr))

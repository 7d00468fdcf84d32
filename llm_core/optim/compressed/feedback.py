"""Carries from step to step what compressed sums of gradients lose
(`llm_core.parallel.compression.reduction`), as an update rule that changes no weight: it is saved
with the moments, and a skipped step leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_core.optim.method import State, Update, own_state
from llm_core.optim.pieces import Piece, write_unless
from llm_core.parallel.compression.reduction import Carried, Reduction
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import Place


class Feedback:
    def __init__(self, layout: Layout, pieces: Sequence[Piece], reduction: Reduction) -> None:
        self._reduction = reduction
        of_weight = {id(piece.weight): piece for piece in pieces}
        weights = dict(layout.bare.named_parameters())
        self._carried: list[tuple[Piece, Carried]] = [
            (of_weight[id(weights[one.name])], one) for one in reduction.carried()
        ]
        self._layout = layout

    def states(self) -> Iterator[State]:
        for piece, one in self._carried:
            if one.is_own:
                yield own_state(self._layout.mesh, piece, one.kind, one.old)
            else:
                yield State(piece, one.kind, one.old, Place(one.old.shape, one.old.shape))

    def update(self, step: Update) -> None:
        pending = self._reduction.pending()
        for _, one in self._carried:
            if (new := pending.get((one.name, one.kind))) is not None:
                write_unless(step.bad, one.old, new)

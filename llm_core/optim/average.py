"""Keeps an exponential average of the weights (EMA), which is often better than the last ones.

a_t = a_{t-1} + (1 - d) / (1 - d^t) (w_t - a_{t-1}) after update t, with the decay d. That is the
mean of all weights there have been, each worth d times the next one. So it begins as the first
updated weights, and initial ones do not count (Kingma and Ba, 2015, section 3, correct moments so).
It is an update rule like the others, after those that change weights: pieces as theirs, saved by
name, unchanged by a skipped step. Costs 4 bytes a weight, shared as optimizer state is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from llm_core.optim.method import AVERAGE, Placed, State, Update
from llm_core.optim.pieces import write_unless


class Average:
    def __init__(self, pieces: Sequence[Placed], decay: float) -> None:
        self._pieces, self._decay = pieces, decay
        with torch.no_grad():
            self._averages = [torch.zeros_like(piece.data) for piece in pieces]

    def states(self) -> Iterator[State]:
        for piece, average in zip(self._pieces, self._averages, strict=True):
            yield State(piece, AVERAGE, average, piece.place)

    def update(self, step: Update) -> None:
        share = (1 - self._decay) / (1 - self._decay**step.number)
        for piece, average in zip(self._pieces, self._averages, strict=True):
            new = average.lerp(piece.data, share.to(average.dtype))
            write_unless(step.bad, average, new)

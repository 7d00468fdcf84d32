"""Updates by LAMB (You et al. 2020) without bias corrections, as 1-bit LAMB begins (Li et al. 2021,
algorithm 1): each weight's update of Adam, scaled to the weight's norm.

The trust ratio is that of whole weights, so tensors must not be cut. It lies within RATIOS; where
a weight or its update is all zeros it is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from llm_core.optim.config import OptimConfig
from llm_core.optim.method import State, Update
from llm_core.optim.pieces import Piece, empty_state, write_unless

RATIOS = (0.01, 10.0)


class Lamb:
    def __init__(self, pieces: Sequence[Piece], config: OptimConfig) -> None:
        self._pieces, self._config = pieces, config
        self._means, self._squares = (empty_state(pieces) for _ in range(2))

    def states(self) -> Iterator[State]:
        for kind, tensors in (("exp_avg", self._means), ("exp_avg_sq", self._squares)):
            for piece, tensor in zip(self._pieces, tensors, strict=True):
                yield State(piece, kind, tensor, piece.place)

    def update(self, step: Update) -> None:
        for i, piece in enumerate(self._pieces):
            self._update_one(i, piece, step)

    def _update_one(self, i: int, piece: Piece, step: Update) -> Tensor:
        """Update a piece, and give its trust ratio."""
        config = self._config
        data, grad = piece.data, piece.grad / step.divisor
        mean = self._means[i].lerp(grad, 1 - config.beta1)
        square = (self._squares[i] * config.beta2).addcmul_(grad, grad, value=1 - config.beta2)
        change = mean / (square.sqrt() + config.eps)
        change.add_(data, alpha=piece.treatment.weight_decay)
        ratio = trust_ratio(data, change)
        lr = step.lr * piece.treatment.lr_factor
        write_unless(step.bad, data, data - lr * ratio * change)
        write_unless(step.bad, self._means[i], mean)
        write_unless(step.bad, self._squares[i], square)
        return ratio


def trust_ratio(data: Tensor, change: Tensor) -> Tensor:
    of_weight, of_change = data.norm(), change.norm()
    ratio = (of_weight / of_change).clamp(*RATIOS)
    return torch.where((of_weight > 0) & (of_change > 0), ratio, 1)

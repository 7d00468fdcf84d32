"""Lion (Chen et al., 2023): the sign of an interpolated momentum. One moment per weight, half of
AdamW's memory.

Usual are a learning rate 3 to 10 times below AdamW's and a weight decay above it by as much, with
beta1 0.9 and beta2 0.99.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from llm_core.optim.config import OptimConfig
from llm_core.optim.method import State, Update
from llm_core.optim.pieces import Piece, by_treatment, empty_state, write_unless


class Lion:
    def __init__(self, pieces: Sequence[Piece], config: OptimConfig) -> None:
        self._pieces, self._config = pieces, config
        self._means = empty_state(pieces, torch.bfloat16 if config.state_dtype == "bf16" else None)
        self._groups = list(by_treatment(pieces))

    def states(self) -> Iterator[State]:
        for piece, mean in zip(self._pieces, self._means, strict=True):
            yield State(piece, "exp_avg", mean, piece.place)

    def update(self, step: Update) -> None:
        config = self._config
        for treatment, members in self._groups:
            lr = step.lr * treatment.lr_factor
            for i in members:
                data, grad = self._pieces[i].data, self._pieces[i].grad / step.divisor
                mean = self._means[i].to(grad.dtype)
                direction = mean.lerp(grad, 1 - config.beta1).sign_()
                decayed = data * (1 - lr * treatment.weight_decay)
                write_unless(step.bad, data, decayed.sub_(direction, alpha=lr))
                write_unless(step.bad, self._means[i], mean.lerp(grad, 1 - config.beta2))

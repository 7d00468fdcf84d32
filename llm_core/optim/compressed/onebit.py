"""Updates by 1-bit Adam (Tang et al. 2021) and 1-bit LAMB (Li et al. 2021): the plain form for a
warm-up, then a frozen second moment and momentum that processes exchange in signs.

The second moment hardly changes once training has settled. With it frozen the update is linear in
the gradient, so what compression loses is made up for later; Adam's own update is not linear. After
the warm-up each process adds its own gradient to the common momentum, and the mean over processes,
exchanged by `llm_core.optim.compressed.momentum`, is the momentum of all, without bias correction.

LAMB must know how large a step a weight bears, which frozen moments do not say. Its trust ratio is
the average of the warm-up times a factor: the largest ratio, over a weight's numbers, of the root
of the frozen second moment to that of a fresh one, of gradients recovered from the momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from llm_core.optim.adamw import AdamW
from llm_core.optim.compressed.momentum import SharedMomentum
from llm_core.optim.config import OptimConfig
from llm_core.optim.lamb import Lamb
from llm_core.optim.method import State, Update
from llm_core.optim.pieces import Piece, empty_state, write_unless
from llm_core.parallel.places import Place

RATIO_BETA = 0.9
"""Of the average of trust ratios in the warm-up (Li et al., section 6)."""
FACTORS = (0.5, 4.0)
"""Least and most of the factor on the trust ratio."""
FACTOR_CHANGE = 0.1
"""Largest share by which it changes in a step."""


class OneBitAdam(AdamW):
    def __init__(
        self, pieces: Sequence[Piece], config: OptimConfig, momentum: SharedMomentum
    ) -> None:
        super().__init__(pieces, config)
        self._momentum = momentum

    def states(self) -> Iterator[State]:
        yield from super().states()
        yield from self._momentum.states()

    def update(self, step: Update) -> None:
        if self._momentum.is_warming_up:
            super().update(step)
            return
        config = self._config
        changes, means, settle = self._momentum.next_steps(
            self._means, self._squares, step, config.beta1, config.eps
        )
        for piece, change, old, new in zip(self._pieces, changes, self._means, means, strict=True):
            lr, data = step.lr * piece.treatment.lr_factor, piece.data
            decayed = data * (1 - lr * piece.treatment.weight_decay)
            write_unless(step.bad, data, decayed.sub_(change, alpha=lr))
            write_unless(step.bad, old, new)
        settle(step.bad)


class OneBitLamb(Lamb):
    def __init__(
        self, pieces: Sequence[Piece], config: OptimConfig, momentum: SharedMomentum
    ) -> None:
        super().__init__(pieces, config)
        self._momentum = momentum
        self._fresh = empty_state(pieces)
        with torch.no_grad():
            self._ratios = [piece.data.new_zeros(()) for piece in pieces]
            self._factors = [piece.data.new_ones(()) for piece in pieces]

    def states(self) -> Iterator[State]:
        yield from super().states()
        yield from self._momentum.states()
        scalar = Place(torch.Size(), torch.Size())
        for i, piece in enumerate(self._pieces):
            yield State(piece, "fresh_sq", self._fresh[i], piece.place)
            yield State(piece, "trust_ratio", self._ratios[i], scalar)
            yield State(piece, "trust_factor", self._factors[i], scalar)

    def update(self, step: Update) -> None:
        if self._momentum.is_warming_up:
            for i, piece in enumerate(self._pieces):
                ratio = self._update_one(i, piece, step)
                average = self._ratios[i].lerp(ratio, 1 - RATIO_BETA)
                write_unless(step.bad, self._ratios[i], average)
                self._fresh[i].copy_(self._squares[i])
            return
        config = self._config
        changes, means, settle = self._momentum.next_steps(
            self._means, self._squares, step, config.beta1, config.eps
        )
        for i, piece in enumerate(self._pieces):
            self._step_frozen(i, piece, changes[i], means[i], step)
        settle(step.bad)

    def _step_frozen(
        self, i: int, piece: Piece, change: Tensor, mean: Tensor, step: Update
    ) -> None:
        config, data = self._config, piece.data
        grad = (mean - config.beta1 * self._means[i]) / (1 - config.beta1)
        fresh = (self._fresh[i] * config.beta2).addcmul_(grad, grad, value=1 - config.beta2)
        whole = change + piece.treatment.weight_decay * data
        # Weight decay does not shrink with the gradients, so the factor leaves its share alone.
        share = (change.norm() / whole.norm()).clamp(max=1).nan_to_num(1)
        roots = [square.sqrt().add_(config.eps) for square in (self._squares[i], fresh)]
        factor = (roots[0] / roots[1]).max() * share + 1 - share
        last = self._factors[i]
        factor = factor.clamp(*FACTORS).clamp(
            last * (1 - FACTOR_CHANGE), last * (1 + FACTOR_CHANGE)
        )
        lr = step.lr * piece.treatment.lr_factor
        write_unless(step.bad, data, data - lr * self._ratios[i] * factor * whole)
        write_unless(step.bad, self._means[i], mean)
        write_unless(step.bad, self._fresh[i], fresh)
        write_unless(step.bad, last, factor)

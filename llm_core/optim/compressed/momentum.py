"""Exchanges momentum among processes with equal weights, one bit a number, with error feedback on
both sides (Tang et al. 2021, algorithm 1).

Each process adds what the last step lost to its share of the momentum, and sends signs and a scale
for each block. The process that adds up a chunk adds what the last sum lost, and sends signs again.
All weights go in one vector, one message each way.

What is sent is momentum over the root of the frozen second moment: the step itself. Tang et al.
send momentum; numbers with rare gradients, such as rows of rare ids, then get the scale of their
neighbours, and steps too large by that ratio. Li et al. (2021) scale whole weights against this.
Numbers that had no gradient in the warm-up have no second moment: they are sent as zero and their
step is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from llm_core.optim.method import State, Update, own_state
from llm_core.optim.pieces import Piece, write_unless
from llm_core.parallel.compression.blocks import padded_length
from llm_core.parallel.compression.codecs import SIGNS
from llm_core.parallel.compression.reduction import Reduction
from llm_core.parallel.compression.wire import coded_sum
from llm_core.parallel.layout import Layout

Settle = Callable[[Tensor], None]
"""Keeps the new losses; called with whether the step is skipped."""


class SharedMomentum:
    """What was lost: of all weights here, in one vector, and of this process's chunk of the sum."""

    def __init__(self, layout: Layout, pieces: Sequence[Piece], reduction: Reduction) -> None:
        self._layout, self._pieces, self._reduction = layout, pieces, reduction
        self._size = reduction.wire.size
        with torch.no_grad():
            self._sizes = [piece.data.numel() for piece in pieces]
            self._numel = sum(self._sizes)
            length = padded_length(self._numel, self._size)
            self._lost = pieces[0].data.new_zeros(length)
            self._lost_of_chunk = pieces[0].data.new_zeros(length // self._size)
        # The part of this process's chunk that is padding.
        first = reduction.wire.rank * (length // self._size)
        self._padding = slice(max(0, self._numel - first), None)

    @property
    def is_warming_up(self) -> bool:
        return self._reduction.is_warming_up

    def states(self) -> Iterator[State]:
        parts = self._lost[: self._numel].split(self._sizes)
        for piece, lost in zip(self._pieces, parts, strict=True):
            with torch.no_grad():
                shaped = lost.view_as(piece.data)
            yield own_state(self._layout.mesh, piece, "compression_error", shaped)
        # It belongs to no single weight, and is saved under the first one's name.
        kind = "compression_error_of_sum"
        yield own_state(self._layout.mesh, self._pieces[0], kind, self._lost_of_chunk)

    def next_steps(
        self,
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        step: Update,
        beta1: float,
        eps: float,
    ) -> tuple[list[Tensor], list[Tensor], Settle]:
        """(momentum over the root of the second moment, momentum, settle) with the gradients of all
        processes; the first two for each piece."""
        shares = []
        for piece, mean, square in zip(self._pieces, means, squares, strict=True):
            # All have the same old momentum, and each its own part of the gradient, which is a sum.
            share = mean * (beta1 / self._size)
            share.add_(piece.grad / step.divisor, alpha=1 - beta1)
            shares.append(torch.where(square > 0, share / (square.sqrt() + eps), 0))
        summed, settle = self._sum(shares)
        changes = [torch.where(v > 0, s, 0) for s, v in zip(summed, squares, strict=True)]
        roots = (square.sqrt().add_(eps) for square in squares)
        momenta = [change * root for change, root in zip(changes, roots, strict=True)]
        return changes, momenta, settle

    def _sum(self, shares: Sequence[Tensor]) -> tuple[list[Tensor], Settle]:
        flat = torch.zeros_like(self._lost)
        torch.cat([share.flatten() for share in shares], out=flat[: self._numel])
        flat += self._lost
        summed, lost, of_chunk = coded_sum(flat, SIGNS, self._reduction.wire, self._lost_of_chunk)
        # Signs have no zero, so padding seems to lose something.
        lost[self._numel :] = 0
        of_chunk[self._padding] = 0

        def settle(bad: Tensor) -> None:
            write_unless(bad, self._lost, lost)
            write_unless(bad, self._lost_of_chunk, of_chunk)

        pieces = summed[: self._numel].split(self._sizes)
        return [p.view_as(s) for p, s in zip(pieces, shares, strict=True)], settle

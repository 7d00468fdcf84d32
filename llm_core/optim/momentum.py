"""Exchanges momentum among processes with equal weights in one bit a number, with error feedback on
both sides (Tang et al. 2021, algorithm 1).

Each process adds to its share of the momentum what was lost of the last one, and sends signs and a
scale for each block; the process that adds up a chunk adds what was lost of the last sum, and sends
signs again. The vector of all weights goes in one message each way.

What is sent is momentum over the root of the frozen second moment, the step itself. Tang et al.
send momentum: numbers with rare gradients, such as rows of rare ids, then get the scale of their
neighbours, and steps too large by the ratio. Li et al. (2021) scale whole weights for that.
Numbers without a gradient in the whole warm-up have no second moment: they are sent as zero, and
stay as they are.
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
"""Called with whether the step is skipped."""


class SharedMomentum:
    """What was lost, of all weights in one vector here, and of this process's chunk of the sum."""

    def __init__(self, layout: Layout, pieces: Sequence[Piece], reduction: Reduction) -> None:
        self._layout, self._pieces, self._reduction = layout, pieces, reduction
        self._size = reduction.wire.size
        with torch.no_grad():
            self._sizes = [piece.data.numel() for piece in pieces]
            self._numel = sum(self._sizes)
            length = padded_length(self._numel, self._size)
            self._lost = pieces[0].data.new_zeros(length)
            self._lost_of_chunk = pieces[0].data.new_zeros(length // self._size)
        # Where this process's chunk is padding.
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
        # Of no weight alone; it goes by the name of the first.
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
        """(momentum over the root of the second moment, momentum, what settles the losses) after
        the gradients of all processes; of each piece."""
        shares = []
        for piece, mean, square in zip(self._pieces, means, squares, strict=True):
            # Each has the same old momentum, and of the gradient, which is a sum, its own part.
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
        # A sign makes something of the zeros behind the last weight.
        lost[self._numel :] = 0
        of_chunk[self._padding] = 0

        def settle(bad: Tensor) -> None:
            write_unless(bad, self._lost, lost)
            write_unless(bad, self._lost_of_chunk, of_chunk)

        pieces = summed[: self._numel].split(self._sizes)
        return [p.view_as(s) for p, s in zip(pieces, shares, strict=True)], settle

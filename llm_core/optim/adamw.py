"""AdamW (Loshchilov and Hutter, 2019): one kernel unscales, clips, skips and updates.

The fused kernel of torch takes the divisor of the gradients and the flag of a bad step as device
scalars, so clipping needs no pass of its own and a skipped step costs nothing. It wants moments in
the dtype of the weights; with bfloat16 moments the update is computed weight by weight in that of
the weights, and only what is kept is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from llm_core.compat import fused_adamw
from llm_core.optim.config import OptimConfig
from llm_core.optim.method import State, Update
from llm_core.optim.pieces import Piece, by_treatment, empty_state, write_unless
from llm_core.parallel.buckets import split_buckets

BUCKET = 1 << 26
"""Elements updated by one kernel: gradients of 16 bits are copied to those of the weights for it,
and the copies of all weights might have no room."""


class AdamW:
    def __init__(self, pieces: Sequence[Piece], config: OptimConfig) -> None:
        self._pieces, self._config = pieces, config
        dtype = torch.bfloat16 if config.state_dtype == "bf16" else None
        self._means, self._squares = (empty_state(pieces, dtype) for _ in range(2))
        self._groups = [
            (treatment, run)
            for treatment, members in by_treatment(pieces)
            for run in self._runs(members)
        ]

    def _runs(self, members: list[int]) -> Iterator[list[int]]:
        rest = iter(members)
        for bucket in split_buckets([self._means[i] for i in members], BUCKET):
            yield list(islice(rest, len(bucket)))

    def states(self) -> Iterator[State]:
        for kind, tensors in (("exp_avg", self._means), ("exp_avg_sq", self._squares)):
            for piece, tensor in zip(self._pieces, tensors, strict=True):
                yield State(piece, kind, tensor, piece.place)

    def update(self, step: Update) -> None:
        config = self._config
        if config.state_dtype == "bf16":
            self._update_rounded(step)
            return
        # The kernel takes the count and the flag as float32.
        number, bad = step.number.float(), step.bad.float()
        for treatment, members in self._groups:
            pieces = [self._pieces[i] for i in members]
            fused_adamw(
                [piece.data for piece in pieces],
                [piece.grad for piece in pieces],
                [self._means[i] for i in members],
                [self._squares[i] for i in members],
                [],
                [number] * len(members),
                amsgrad=False,
                lr=step.lr * treatment.lr_factor,
                beta1=config.beta1,
                beta2=config.beta2,
                weight_decay=treatment.weight_decay,
                eps=config.eps,
                maximize=False,
                grad_scale=step.divisor,
                found_inf=bad,
            )

    def _update_rounded(self, step: Update) -> None:
        config = self._config
        mean_correction = 1 - config.beta1**step.number
        square_correction = (1 - config.beta2**step.number).sqrt()
        for treatment, members in self._groups:
            lr = step.lr * treatment.lr_factor
            for i in members:
                data, grad = self._pieces[i].data, self._pieces[i].grad / step.divisor
                mean = self._means[i].to(grad.dtype).lerp_(grad, 1 - config.beta1)
                square = self._squares[i].to(grad.dtype).mul_(config.beta2)
                square.addcmul_(grad, grad, value=1 - config.beta2)
                root = (square.sqrt() / square_correction).add_(config.eps)
                change, decayed = mean / mean_correction, data * (1 - lr * treatment.weight_decay)
                write_unless(step.bad, data, decayed.sub_(change.div_(root), alpha=lr))
                write_unless(step.bad, self._means[i], mean)
                write_unless(step.bad, self._squares[i], square)

"""Sums the gradients of replicated weights over processes after backward, in fewer bytes than DDP.

| `parallel.compress` | share of the bytes of a float32 sum | what is lost |
|---|---|---|
| int8, fp8 | about 1/4 | rounding, here and of the sum; not made up for |
| powersgd | (rows + columns) x rank / (rows x columns) of a matrix | added to the next gradient |
| onebit | 1/31 after a warm-up | added to the next momentum (`llm_core.optim.compressed.onebit`) |

All begin with `warmup_steps` steps of plain sums. Coded sums add in the order of processes, and all
processes get the same bits. The optimizer updates what a method carries from step to step, so a
skipped step leaves it as it was (`llm_core.optim.compressed.feedback`).

PowerSGD (Vogels et al. 2019, algorithm 1): a matrix M, the gradient plus what earlier steps lost,
is sent as P = M Q, made orthonormal, and Q = Mᵀ P. Vectors, and matrices that this would not shrink
to less than half, are summed as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from llm_core.parallel.buckets import SUM_BUCKET, split_buckets
from llm_core.parallel.compression.blocks import padded_length, shrinks
from llm_core.parallel.compression.codecs import FP8, INT8, Codec
from llm_core.parallel.compression.wire import Wire, coded_sum
from llm_core.parallel.square_sums import square_sum


@dataclass(frozen=True, eq=False)
class Carried:
    """What a method carries from one step to the next for one weight."""

    name: str
    """Of the weight in the model."""
    kind: str
    old: Tensor
    is_own: bool
    """Whether each process has its own; else all have the same."""


class Reduction:
    """Plain sums. `steps` counts them: a tensor in main memory, for checkpoints."""

    def __init__(self, wire: Wire, warmup_steps: int = 0) -> None:
        self.wire, self.warmup_steps = wire, warmup_steps
        self.steps = torch.zeros((), dtype=torch.int64)

    @property
    def is_warming_up(self) -> bool:
        """Whether the last step's gradients were summed plainly."""
        return int(self.steps) <= self.warmup_steps

    @property
    def counts(self) -> dict[str, Tensor]:
        """What checkpoints hold of it besides `carried`, the same on all processes, by name."""
        return {"steps": self.steps}

    def expected_squares(self, squares: Tensor) -> Tensor:
        """The square of the norm of the sum of gradients, as far as it can be known. squares: of
        the gradients that are here after `reduce`, a float64 scalar."""
        return squares

    def carried(self) -> Iterator[Carried]:
        yield from ()

    def pending(self) -> Mapping[tuple[str, str], Tensor]:
        """{(weight, kind): what to carry on unless the step is skipped}; forgotten here."""
        return {}

    @torch.no_grad()
    def reduce(self, model: nn.Module) -> None:
        """Replace the gradients of the trained weights by their sums over processes. Every process
        must call it, once a step."""
        self.steps += 1
        grads = {name: w.grad for name, w in model.named_parameters() if w.grad is not None}
        if self.is_warming_up:
            self._sum(grads)
        else:
            self._reduce(grads)

    def _reduce(self, grads: Mapping[str, Tensor]) -> None:
        self._sum(grads)

    def _sum(self, grads: Mapping[str, Tensor]) -> None:
        for bucket in split_buckets(list(grads.values()), SUM_BUCKET):
            self.wire.sum(bucket)


class Rounded(Reduction):
    """Sums in 8-bit numbers."""

    def __init__(self, wire: Wire, warmup_steps: int, codec: Codec) -> None:
        super().__init__(wire, warmup_steps)
        self._codec = codec

    def _reduce(self, grads: Mapping[str, Tensor]) -> None:
        for bucket in split_buckets(list(grads.values()), SUM_BUCKET):
            numel = sum(grad.numel() for grad in bucket)
            flat = bucket[0].new_zeros(padded_length(numel, self.wire.size))
            torch.cat([grad.flatten() for grad in bucket], out=flat[:numel])
            summed, _, _ = coded_sum(flat, self._codec, self.wire)
            pieces = summed[:numel].split([grad.numel() for grad in bucket])
            for grad, piece in zip(bucket, pieces, strict=True):
                grad.copy_(piece.view_as(grad))


RATIO_BETA = 0.9


class LeftToOptimizer(Reduction):
    """Sums in the warm-up only: then the optimizer exchanges momentum.

    norm_ratio: of the norm of the sum of gradients to its bound, as an average over the warm-up,
    the same on all processes. Noise of different tokens is at right angles, so on n processes it is
    near 1 / sqrt(n), and the bound alone would clip by as much more.
    """

    def __init__(self, wire: Wire, warmup_steps: int, device: torch.device) -> None:
        super().__init__(wire, warmup_steps)
        self.norm_ratio = torch.ones((), dtype=torch.float64, device=device)

    @property
    def counts(self) -> dict[str, Tensor]:
        return super().counts | {"norm_ratio": self.norm_ratio}

    def expected_squares(self, squares: Tensor) -> Tensor:
        if self.is_warming_up:
            return squares
        return self._bound(squares) * self.norm_ratio.square()

    def _bound(self, squares: Tensor) -> Tensor:
        """Of gradients g on n processes n x sum of |g|^2, which is no less than the square of the
        norm of their sum."""
        total = squares.clone()
        self.wire.sum([total])
        return total * self.wire.size

    def _sum(self, grads: Mapping[str, Tensor]) -> None:
        bound = self._bound(square_sum(list(grads.values())))
        super()._sum(grads)
        ratio = (square_sum(list(grads.values())) / bound).sqrt()
        # A step without a gradient, or with one that is not a number, says nothing.
        known = torch.where(torch.isfinite(ratio), ratio, self.norm_ratio)
        self.norm_ratio.lerp_(known, 1 - RATIO_BETA)

    def _reduce(self, grads: Mapping[str, Tensor]) -> None:
        pass


class PowerSgd(Reduction):
    def __init__(self, wire: Wire, warmup_steps: int, model: nn.Module, rank: int) -> None:
        super().__init__(wire, warmup_steps)
        self._errors: dict[str, Tensor] = {}
        self._bases: dict[str, Tensor] = {}
        self._pending: dict[tuple[str, str], Tensor] = {}
        # Equal on all processes, whatever the seed of the run.
        generator = torch.Generator().manual_seed(1)
        for name, weight in model.named_parameters():
            if not weight.requires_grad or not shrinks(weight.shape, rank):
                continue
            self._errors[name] = torch.zeros_like(weight, requires_grad=False)
            drawn = torch.randn(weight.shape[1], rank, generator=generator)
            self._bases[name] = drawn.to(weight.device, weight.dtype)

    def carried(self) -> Iterator[Carried]:
        for name, error in self._errors.items():
            yield Carried(name, "compression_error", error, is_own=True)
            yield Carried(name, "compression_basis", self._bases[name], is_own=False)

    def pending(self) -> Mapping[tuple[str, str], Tensor]:
        found, self._pending = self._pending, {}
        return found

    def _reduce(self, grads: Mapping[str, Tensor]) -> None:
        names = [name for name in self._errors if name in grads]
        matrices = {name: grads[name] + self._errors[name] for name in names}
        left = {name: matrices[name] @ self._bases[name] for name in names}
        rest = [grad for name, grad in grads.items() if name not in self._errors]
        self.wire.sum([*left.values(), *rest])
        left = {name: orthonormal(p) for name, p in left.items()}
        right = {name: matrices[name].T @ left[name] for name in names}
        self.wire.sum(list(right.values()))
        for name in names:
            torch.mm(left[name], right[name].T, out=grads[name])
            lost = matrices[name].sub_(grads[name], alpha=1 / self.wire.size)
            self._pending[name, "compression_error"] = lost
            self._pending[name, "compression_basis"] = right[name]


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of the columns, in float32 or more."""
    wide = columns.to(torch.promote_types(columns.dtype, torch.float32))
    return torch.linalg.qr(wide).Q.to(columns.dtype)


def make_reduction(
    kind: str, wire: Wire, model: nn.Module, warmup_steps: int, rank: int
) -> Reduction:
    """The reduction for a value of `parallel.compress` other than none."""
    if kind == "powersgd":
        return PowerSgd(wire, warmup_steps, model, rank)
    if kind == "onebit":
        device = next(model.parameters()).device
        return LeftToOptimizer(wire, warmup_steps, device)
    return Rounded(wire, warmup_steps, INT8 if kind == "int8" else FP8)

"""Brings rows of tokens into the order of their experts, and the outputs of experts back.

Rows are gathered in both passes, never scattered: sums have one order, so equal inputs give equal
bits. Each pass is one function without state. Eager ones write every result between; compiled, each
reads its rows once, and a forward pass keeps none but the outputs of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

# N tokens · K experts of a token · P pairs, N x K, numbered by token, then by choice
# D model width · E experts


@dataclass(frozen=True)
class PairOrder:
    """Pairs sorted by expert; those of one expert stay in the order of tokens."""

    pairs_P: Tensor
    """int64 number of the pair at each place."""
    places_P: Tensor
    """int64 place of each pair."""
    counts: Tensor
    """int64 [E + 1]: pairs of each expert, then of others."""


def sort_pairs(experts_P: Tensor, number: int) -> PairOrder:
    """experts_P: int64, from 0 to number, where number stands for others."""
    # A sort on a GPU takes a pass for each byte of its keys.
    keys_P = experts_P.to(torch.uint8 if number < 256 else torch.int32)
    sorted_P, pairs_P = keys_P.sort(stable=True)
    each_P = torch.arange(len(pairs_P), device=pairs_P.device)
    places_P = torch.empty_like(pairs_P).scatter_(0, pairs_P, each_P)
    each = torch.arange(number + 1, device=keys_P.device).to(keys_P.dtype)
    ends = torch.searchsorted(sorted_P, each, right=True)
    return PairOrder(pairs_P, places_P, ends.diff(prepend=ends.new_zeros(1)))


def summed(y_PD: Tensor, places_P: Tensor, top_k: int) -> Tensor:
    """y_ND: for each token the sum of the rows of its pairs."""
    return y_PD[places_P].unflatten(0, (-1, top_k)).sum(dim=1)


def mixed(y_PD: Tensor, places_P: Tensor, gates_NK: Tensor) -> Tensor:
    """y_ND: for each token the rows of its pairs times their gates, summed in the gates' dtype."""
    y_NKD = y_PD[places_P].unflatten(0, (-1, gates_NK.shape[1]))
    return (y_NKD.to(gates_NK.dtype) * gates_NK[..., None]).sum(dim=1)


def mixed_backward(
    grad_ND: Tensor, y_PD: Tensor, gates_NK: Tensor, pairs_P: Tensor, places_P: Tensor
) -> tuple[Tensor, Tensor]:
    """(gradient of y_PD, of gates_NK) of `mixed`."""
    top_k = gates_NK.shape[1]
    of_y_PD = grad_ND[pairs_P // top_k] * gates_NK.flatten()[pairs_P][:, None]
    y_NKD = y_PD[places_P].unflatten(0, (-1, top_k)).to(gates_NK.dtype)
    return of_y_PD.to(y_PD.dtype), (y_NKD * grad_ND[:, None]).sum(dim=-1)


Summed = Callable[[Tensor, Tensor, int], Tensor]
Mixed = Callable[[Tensor, Tensor, Tensor], Tensor]
MixedBackward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def spread(x_ND: Tensor, order: PairOrder, top_k: int, summed: Summed) -> Tensor:
    """x_PD: the row of its token for each place. summed: that function, or the same compiled."""
    return cast(Tensor, _Spread.apply(x_ND, order, top_k, summed))


def mix(
    y_PD: Tensor, gates_NK: Tensor, order: PairOrder, mixed: Mixed, backward: MixedBackward
) -> Tensor:
    """`mixed` by that function and the gradient by `backward`, or by the same compiled."""
    return cast(Tensor, _Mix.apply(y_PD, gates_NK, order, mixed, backward))


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order: PairOrder, top_k: int, summed: Summed) -> Tensor:
        ctx.save_for_backward(order.places_P)
        ctx.top_k, ctx.summed = top_k, summed
        return x_ND[order.pairs_P // top_k]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.summed(grads[0], *ctx.saved_tensors, ctx.top_k), None, None, None


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y_PD: Tensor,
        gates_NK: Tensor,
        order: PairOrder,
        mixed: Mixed,
        backward: MixedBackward,
    ) -> Tensor:
        ctx.save_for_backward(y_PD, gates_NK, order.pairs_P, order.places_P)
        ctx.mixed_backward = backward
        return mixed(y_PD, order.places_P, gates_NK)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.mixed_backward(grads[0], *ctx.saved_tensors), None, None, None


class Permuted(torch.autograd.Function):
    """Reorders rows; backward takes the inverse order."""

    @staticmethod
    def forward(ctx: Any, y_PD: Tensor, order_P: Tensor, inverse_P: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_P)
        return y_PD[order_P]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0][ctx.saved_tensors[0]], None, None

"""Multiplies on a square of processes without ever joining a matrix (SUMMA; van de Geijn and Watts
1997).

Process (row i, column j) has the tokens i and the features j of an activation, and of a weight the
inner features j (heads, channels or ids) and the part i of the model's width. In turn l one block of
the width is sent to those that need it, so two foreign blocks exist at once.

| layer | stays | forward, in turn l | backward, in turn l |
|---|---|---|---|
| into | outputs | inputs l along the row, weight l down the column | both again; gradients of both are summed there |
| out, embed | inputs | weight l down the column; outputs are summed in column l | gradient l along the row, weight l down the column; that of the weight is summed there |

So what is as wide as the inner features is never sent. Xu et al. (2021) send the inputs of every layer, in
`out` those. Elements that a process receives in both passes, of T tokens of all rows and side q:

    into: (q - 1) / q² · 3 (T k_in + k_in k_out)      out: (q - 1) / q² · (2 T k_out + 3 k_in k_out)

Each function keeps its own blocks for backward, and sends them again there.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.model.precision import product_dtype
from llm_core.parallel.vocabulary import embed

# D width of the model · d part of it that a block has · N inner features of this column


@dataclass(frozen=True, eq=False)
class Summa:
    """The products of a process of a square. row, column: the groups of those in the same row, by
    their columns, and in the same column, by their rows."""

    row: dist.ProcessGroup
    column: dist.ProcessGroup

    @property
    def side(self) -> int:
        return dist.get_world_size(self.row)

    @torch.compiler.disable
    def into(self, x_BTd: Tensor, weight_Nd: Tensor) -> Tensor:
        """Features of the stream → inner features, out_BTN."""
        x_BTd, weight_Nd = (x.to(product_dtype(x)).contiguous() for x in (x_BTd, weight_Nd))
        return cast(Tensor, _Into.apply(x_BTd, weight_Nd, self))

    @torch.compiler.disable
    def out(self, x_BTN: Tensor, weight_dN: Tensor) -> Tensor:
        """Inner features → features of the stream, out_BTd."""
        x_BTN, weight_dN = (x.to(product_dtype(x)).contiguous() for x in (x_BTN, weight_dN))
        return cast(Tensor, _Out.apply(x_BTN, weight_dN, self))

    @torch.compiler.disable
    def embed(self, ids_BT: Tensor, weight_Nd: Tensor, first_id: int) -> Tensor:
        """Features of the stream, out_BTd, of ids of which this column has some."""
        return cast(Tensor, _Embed.apply(ids_BT, weight_Nd.contiguous(), first_id, self))

    def of_stream(self, rows_BT: Tensor) -> Tensor:
        return rows_BT


def _sent(x: Tensor, source: int, group: dist.ProcessGroup) -> Tensor:
    """The block of one process, on all of its group. Blocks have one shape."""
    block = x if dist.get_rank(group) == source else torch.empty_like(x)
    dist.broadcast(block, group=group, group_src=source)
    return block


def _summed(x: Tensor, target: int, group: dist.ProcessGroup) -> Tensor | None:
    """The sum of what all have, on one process; None elsewhere. Takes the tensor."""
    dist.reduce(x, group=group, group_dst=target)
    return x if dist.get_rank(group) == target else None


class _Into(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTd: Tensor, weight_Nd: Tensor, run: Summa) -> Tensor:
        ctx.save_for_backward(x_BTd, weight_Nd)
        ctx.run = run
        out_BTN = x_BTd.new_zeros(*x_BTd.shape[:-1], len(weight_Nd))
        flat_MN = out_BTN.flatten(0, -2)
        for turn in range(run.side):
            x = _sent(x_BTd, turn, run.row)
            weight = _sent(weight_Nd, turn, run.column)
            flat_MN.addmm_(x.flatten(0, -2), weight.t())
        return out_BTN

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_BTd, weight_Nd = ctx.saved_tensors
        grad_MN, run = grads[0].contiguous().flatten(0, -2), ctx.run
        needs_x, needs_weight, _ = ctx.needs_input_grad
        own_x = own_weight = None
        for turn in range(run.side):
            if needs_x:
                dx_Md = grad_MN @ _sent(weight_Nd, turn, run.column)
                own_x = _first(own_x, _summed(dx_Md, turn, run.row))
            if needs_weight:
                dweight_Nd = grad_MN.t() @ _sent(x_BTd, turn, run.row).flatten(0, -2)
                own_weight = _first(own_weight, _summed(dweight_Nd, turn, run.column))
        return own_x if own_x is None else own_x.view_as(x_BTd), own_weight, None


class _Out(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTN: Tensor, weight_dN: Tensor, run: Summa) -> Tensor:
        ctx.save_for_backward(x_BTN, weight_dN)
        ctx.run = run
        own = None
        for turn in range(run.side):
            out_BTd = x_BTN @ _sent(weight_dN, turn, run.column).t()
            own = _first(own, _summed(out_BTd, turn, run.row))
        assert own is not None
        return own

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_BTN, weight_dN = ctx.saved_tensors
        grad_Md, run = grads[0].contiguous().flatten(0, -2), ctx.run
        needs_x, needs_weight, _ = ctx.needs_input_grad
        x_MN, own_weight = x_BTN.flatten(0, -2), None
        dx_MN = torch.zeros_like(x_MN) if needs_x else None
        for turn in range(run.side):
            grad = _sent(grad_Md, turn, run.row)
            if dx_MN is not None:
                dx_MN.addmm_(grad, _sent(weight_dN, turn, run.column))
            if needs_weight:
                own_weight = _first(own_weight, _summed(grad.t() @ x_MN, turn, run.column))
        return dx_MN if dx_MN is None else dx_MN.view_as(x_BTN), own_weight, None


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids_BT: Tensor, weight_Nd: Tensor, first_id: int, run: Summa) -> Tensor:
        ctx.save_for_backward(ids_BT)
        ctx.run, ctx.first_id, ctx.shape = run, first_id, weight_Nd.shape
        own = None
        for turn in range(run.side):
            out_BTd = embed(_sent(weight_Nd, turn, run.column), ids_BT, first_id)
            own = _first(own, _summed(out_BTd, turn, run.row))
        assert own is not None
        return own

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None, None]:
        (ids_BT,), grad_BTd, run = ctx.saved_tensors, grads[0].contiguous(), ctx.run
        own = None
        for turn in range(run.side):
            grad = _sent(grad_BTd, turn, run.row)
            with torch.enable_grad():
                weight_Nd = grad.new_zeros(ctx.shape, requires_grad=True)
                out_BTd = embed(weight_Nd, ids_BT, ctx.first_id)
            (dweight_Nd,) = torch.autograd.grad(out_BTd, weight_Nd, grad)
            own = _first(own, _summed(dweight_Nd.contiguous(), turn, run.column))
        return None, own, None, None


def _first(found: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Whichever is there: each process gets one of the sums."""
    return other if found is None else found

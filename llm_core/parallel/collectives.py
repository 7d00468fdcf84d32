"""Exchanges that gradients go back through. Each is a function of the tensors of all processes of a
group.

| function | forward | backward |
|---|---|---|
| gather | the pieces of all, joined along a dim | sums, of which each keeps its piece |
| scatter_sum | the sum of all, of which each keeps its piece | the pieces of all, joined |
| total | the sum of all | the gradient, which is the same on all |
| share | the tensor, which is the same on all | the sum of all |
| exchange | chunk i of process j, as chunk j of process i | the same: it is its own inverse |

A compiler must not trace them: torch 2.11 puts exchanges of GPUs into a block's graph without the
gradients that go back through them, and a model then learns in its embedding and its head alone. So
each breaks the graph of a compiled block.

The first four are what tensor and sequence parallelism need (Shoeybi et al. 2019, section 3;
Korthikanti et al. 2022, section 4.2.2), the last is for slices of tokens
(`llm_core.parallel.sequence.context`).
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.compat import all_gather_single, reduce_scatter_single


@torch.compiler.disable
def gather(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    return cast(Tensor, _Gather.apply(x, dim, group))


@torch.compiler.disable
def scatter_sum(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Raises ValueError where the dim does not divide."""
    if x.shape[dim] % dist.get_world_size(group):
        raise ValueError(
            f"dim {dim} of {tuple(x.shape)} must be a multiple of the {dist.get_world_size(group)}"
            " processes"
        )
    return cast(Tensor, _ScatterSum.apply(x, dim, group))


@torch.compiler.disable
def total(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return cast(Tensor, _Total.apply(x, group))


@torch.compiler.disable
def share(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return cast(Tensor, _Share.apply(x, group))


@torch.compiler.disable
def exchange(chunks: Tensor, group: dist.ProcessGroup) -> Tensor:
    return cast(Tensor, _Exchange.apply(chunks, group))


def _gather(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    out = x.new_empty(size, *x.shape)
    all_gather_single(out.flatten(0, 1), x.contiguous(), group=group)
    return out.movedim(0, dim).flatten(dim, dim + 1)


def _scatter_sum(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    chunks = x.unflatten(dim, (dist.get_world_size(group), -1)).movedim(dim, 0).contiguous()
    out = chunks.new_empty(chunks.shape[1:])
    reduce_scatter_single(out, chunks.flatten(0, 1), group=group)
    return out


def _total(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out, group=group)
    return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _gather(x, dim, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _scatter_sum(grads[0], ctx.dim, ctx.group), None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _scatter_sum(x, dim, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _gather(grads[0], ctx.dim, ctx.group), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _total(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _total(grads[0], ctx.group), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chunks: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        out = torch.empty_like(chunks, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, chunks.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return cast(Tensor, _Exchange.apply(grads[0], ctx.group)), None

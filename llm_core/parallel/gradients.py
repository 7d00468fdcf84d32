"""Finishes gradients after backward: sums that no layout has made, and the whole norm."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from llm_core.model.transformer import HEAD
from llm_core.parallel.buckets import sum_over
from llm_core.parallel.layout import Layout
from llm_core.parallel.pipelining.stages import has_copies
from llm_core.parallel.places import local
from llm_core.parallel.square_sums import square_sum
from llm_core.parallel.tensor import cut_dim


def finish_gradients(layout: Layout) -> None:
    """Sum what backward has not: gradients that go in fewer bytes or to servers, and those of whole
    weights, which each tensor rank has for its own tokens or heads only."""
    if layout.reduction is not None:
        layout.reduction.reduce(layout.model)
    if layout.servers is not None:
        layout.servers.push()
    tensor = layout.tensor
    if tensor is None:
        return
    grads = [
        local(p.grad)
        for name, p in layout.bare.named_parameters()
        if tensor.is_partial(name) and p.grad is not None
    ]
    sum_over(grads, tensor.group, layout.device)


def gradient_norm(layout: Layout) -> Tensor:
    """The 2-norm of the whole gradient, the same scalar on every process. No host synchronisation.

    Each number counts once: pieces are summed over the processes that share a weight, a copy of a
    tied weight is left out.
    """
    model, pipeline = layout.bare, layout.pipeline
    skips_head = pipeline is not None and has_copies(model.config, pipeline.plan)
    pieces: dict[tuple[bool, bool], list[Tensor]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.grad is None or (skips_head and name == HEAD):
            continue
        over_data = isinstance(parameter.grad, DTensor)
        over_tensor = layout.tensor is not None and cut_dim(name) is not None
        pieces[over_data, over_tensor].append(local(parameter.grad))
    # Of four kinds: squares of the pieces that are shared over (data, tensor) processes.
    squares = torch.zeros(2, 2, dtype=torch.float64, device=layout.device)
    for (over_data, over_tensor), grads in pieces.items():
        squares[int(over_data), int(over_tensor)] = square_sum(grads)
    if layout.mesh is not None and any(over_data for over_data, _ in pieces):
        dist.all_reduce(squares[1], group=layout.mesh.get_group("dp_shard"))
    by_tensor = squares.sum(dim=0)
    if layout.tensor is not None:
        dist.all_reduce(by_tensor[1], group=layout.tensor.group)
    total = by_tensor.sum()
    if layout.reduction is not None and layout.reduction.leaves_gradients:
        # Of gradients g on n processes: sqrt(n * sum of |g|^2), which is no less than the norm of
        # their sum, and the same on all.
        layout.reduction.wire.sum([total])
        total *= layout.reduction.wire.size
    if pipeline is not None:
        dist.all_reduce(total, group=pipeline.group)
    if layout.servers is not None:
        dist.all_reduce(total, group=layout.servers.group)
    # That of trained weights: gradients may have 16 bits, and so may what is frozen.
    weights = list(model.parameters())
    kept = next((weight for weight in weights if weight.requires_grad), weights[0])
    return total.sqrt().to(kept.dtype)

"""Finishes gradients after backward: sums that no layout has made, and the whole norm."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from llm_core.model.transformer import HEAD
from llm_core.parallel.buckets import sum_over
from llm_core.parallel.experts.exchange import sparse_layers
from llm_core.parallel.layout import Layout
from llm_core.parallel.pipelining.stages import has_copies
from llm_core.parallel.places import is_cut, local
from llm_core.parallel.square_sums import square_sum


def finish_gradients(layout: Layout) -> None:
    """Sum what backward has not: gradients that go in fewer bytes or to servers, those of experts
    between the groups that hold copies of them, and those of whole weights, which each tensor rank
    has for its own tokens or heads only."""
    if layout.reduction is not None:
        layout.reduction.reduce(layout.model)
    if layout.servers is not None:
        layout.servers.push()
    if layout.expert_copies is not None:
        stacked = [each for layer in sparse_layers(layout.bare) for each in layer.experts.stacked]
        found = [local(each.weight.grad) for each in stacked if each.weight.grad is not None]
        sum_over(found, layout.expert_copies, layout.device)
    tensor = layout.tensor
    if tensor is None:
        return
    partial: dict[dist.ProcessGroup, list[Tensor]] = defaultdict(list)
    for name, parameter in layout.bare.named_parameters():
        if parameter.grad is not None and (group := tensor.unsummed(name)) is not None:
            partial[group].append(local(parameter.grad))
    for group, grads in partial.items():
        sum_over(grads, group, layout.device)


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
        over_tensor = layout.tensor is not None and is_cut(layout.tensor.placements(name))
        pieces[over_data, over_tensor].append(local(parameter.grad))
    # Of four kinds: squares of the pieces that are shared over (data, tensor) processes.
    squares = torch.zeros(2, 2, dtype=torch.float64, device=layout.device)
    for (over_data, over_tensor), grads in pieces.items():
        squares[int(over_data), int(over_tensor)] = square_sum(grads)
    if layout.mesh is not None and any(over_data for over_data, _ in pieces):
        dist.all_reduce(squares[1], group=layout.mesh.get_group("dp_shard"))
    by_tensor = squares.sum(dim=0)
    if layout.tensor is not None:
        for group in layout.tensor.cutting:
            dist.all_reduce(by_tensor[1], group=group)
    total = by_tensor.sum()
    if layout.reduction is not None:
        total = layout.reduction.expected_squares(total)
    if pipeline is not None:
        dist.all_reduce(total, group=pipeline.group)
    if layout.servers is not None:
        dist.all_reduce(total, group=layout.servers.group)
    # That of trained weights: gradients may have 16 bits, and so may what is frozen.
    weights = list(model.parameters())
    kept = next((weight for weight in weights if weight.requires_grad), weights[0])
    return total.sqrt().to(kept.dtype)

"""Whole weights into a layout, and out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer, as_it_is, global_name
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local, placed_weights, whole_shapes
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.tensor import TensorShards


def initialize(model: Transformer, seed: int, tensor: TensorShards | None) -> None:
    """Give this process's weights their pieces of initial values, which no layout changes."""
    init_weights(model, seed, partial(put, tensor), whole_shapes(model.config))


def put(tensor: TensorShards | None, name: str, weight: nn.Parameter, whole: Tensor) -> None:
    """Write this process's piece of a whole weight. Each process has it whole; nothing is sent."""
    piece = whole if tensor is None else tensor.cut(name, whole)
    if isinstance(weight, DTensor):
        piece = distribute_tensor(
            piece.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None
        )
    # Of pieces: a weight that rests in main memory is on another device than what distribute_tensor
    # gives.
    local(weight).copy_(local(piece))


def write_weights(layout: Layout, weights: Mapping[str, Tensor]) -> None:
    """Fill the model from whole weights on the CPU, by global names."""
    with torch.no_grad():
        for name, weight in layout.bare.named_parameters():
            found = global_name(layout.bare.config, name)
            put(layout.tensor, found, weight, weights[found])


def whole_weights(
    layout: Layout, ranks: Ranks, of: Callable[[nn.Parameter], Tensor] = as_it_is
) -> dict[str, Tensor]:
    """All weights on the CPU of the first rank, both names of a tied one; empty elsewhere. Every
    rank must call it.

    of: something else of the shape of each weight, as its gradient.
    """
    config, pipeline = layout.bare.config, layout.pipeline
    own = {name: (weight, place) for name, weight, place in reversed(list(placed_weights(layout)))}
    rank = 0 if pipeline is None else dist.get_rank(pipeline.group)
    found: dict[str, Tensor] = {}
    for name, shape in whole_shapes(config).items():
        source = global_name(config, name)
        if source in found:
            found[name] = found[source]
            continue
        owner = 0
        if pipeline is not None:
            owner = next(
                r for r in range(pipeline.plan.num_ranks) if pipeline.plan.has_weight(r, source)
            )
        if rank == owner:
            weight, place = own[source]
            whole = place.whole(local(of(weight).detach())).contiguous()
        else:
            whole = torch.empty(shape, dtype=next(iter(own.values()))[0].dtype, device=ranks.device)
        if pipeline is not None and owner != 0:
            dist.broadcast(whole, group=pipeline.group, group_src=owner)
        found[name] = whole.cpu() if ranks.is_first else whole.new_empty(0)
    return found if ranks.is_first else {}

"""Whole weights into a layout, and out of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from llm_core.model.experts.router import ROUTER_BIAS, as_it_is, router_biases
from llm_core.model.init import Box, drawn, init_weights, std_of
from llm_core.model.transformer import global_name
from llm_core.parallel.cuts import part_of
from llm_core.parallel.frozen import coded_weights, short_dtype
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local, place_of, placed_weights, whole_shapes
from llm_core.parallel.ranks import Ranks

ALL = slice(None)


def initialize(
    layout: Layout, seed: int, chosen: Callable[[str], bool] = lambda _name: True
) -> None:
    """Give this process's weights their pieces of initial values, which no layout changes.

    chosen: whether one of this name gets them.
    """
    shapes = whole_shapes(layout.bare.config)

    def locate(name: str, weight: nn.Parameter) -> tuple[torch.Size, Tensor, Box]:
        return shapes[name], local(weight), box_of(layout, name, weight, shapes[name])

    init_weights(layout.bare, seed, locate, chosen)
    config = layout.bare.config
    for name, codes in coded_weights(layout.bare):
        if chosen(name):
            whole = drawn(name, shapes[name], std_of(config, name, shapes[name]), seed)
            codes.write(whole, *box_of(layout, name, codes.codes_OI, shapes[name]))


def box_of(layout: Layout, name: str, weight: Tensor, shape: torch.Size) -> Box:
    """Which box of the whole weight of this name and shape is on this process."""
    box = [range(size) for size in shape]
    for axis, placement in () if layout.tensor is None else layout.tensor.placements(name):
        if isinstance(placement, Shard):
            assert layout.mesh is not None
            own, size = layout.mesh.get_local_rank(axis), layout.mesh[axis].size()
            part = part_of(len(box[placement.dim]), own, size)
            box[placement.dim] = box[placement.dim][part.start : part.stop]
    # Only the last axis cuts; the one before it replicates.
    if isinstance(weight, DTensor):
        assert layout.mesh is not None and weight.placements[-1].is_shard(0)
        shard = layout.mesh["dp_shard"]
        part = part_of(len(box[0]), shard.get_local_rank(), shard.size())
        box[0] = box[0][part.start : part.stop]
    return tuple(box)


class Weights(Protocol):
    """Whole weights by global names, on the CPU."""

    def rows(self, name: str, rows: slice) -> Tensor:
        """Some rows of a weight."""


def write_weights(
    layout: Layout, weights: Weights, chosen: Callable[[str], bool] = lambda _name: True
) -> None:
    """Fill the model. Each process asks for the rows that it holds; nothing is sent.

    chosen: whether the weight of this name is written.
    """
    shapes = whole_shapes(layout.bare.config)
    with torch.no_grad():
        for name, weight in layout.bare.named_parameters():
            if not chosen(name):
                continue
            found = global_name(layout.bare.config, name)
            box = box_of(layout, found, weight, shapes[found])
            rows, *columns = (slice(run.start, run.stop) for run in box)
            local(weight).copy_(weights.rows(found, rows)[(ALL, *columns)])
        for name, bias in router_biases(layout.bare):
            if chosen(name):
                bias.copy_(weights.rows(name, ALL))
    for name, codes in coded_weights(layout.bare):
        if chosen(name):
            # Scales are quantised over the whole weight, so a part needs all of it.
            box = box_of(layout, name, codes.codes_OI, shapes[name])
            codes.write(weights.rows(name, ALL), *box)


def whole_weights(
    layout: Layout, ranks: Ranks, of: Callable[[nn.Parameter], Tensor] = as_it_is
) -> dict[str, Tensor]:
    """All weights on the CPU of the first rank, both names of a tied one; empty elsewhere. Every
    rank must call it.

    of: something else of the shape of each weight, as its gradient.
    """
    found = dict(each_whole_weight(layout, ranks, of))
    if not ranks.is_first:
        return {}
    config = layout.bare.config
    return {name: found[global_name(config, name)] for name in whole_shapes(config)}


def each_whole_weight(
    layout: Layout, ranks: Ranks, of: Callable[[nn.Parameter], Tensor] = as_it_is
) -> Iterator[tuple[str, Tensor]]:
    """(name, weight) of one weight after another, on the CPU of the first rank and empty elsewhere;
    a tied one by its first name. Every rank must go through all of them."""
    config, pipeline = layout.bare.config, layout.pipeline
    own = {name: (weight, place) for name, weight, place in reversed(list(placed_weights(layout)))}
    coded = dict(coded_weights(layout.bare))
    rank = 0 if pipeline is None else dist.get_rank(pipeline.group)
    biases = dict(router_biases(layout.bare))
    wide = functools.reduce(torch.promote_types, (weight.dtype for weight, _ in own.values()))
    for name, shape in whole_shapes(config).items():
        if global_name(config, name) != name:
            continue
        owner = 0
        if pipeline is not None:
            owner = next(
                r for r in range(pipeline.plan.num_ranks) if pipeline.plan.has_weight(r, name)
            )
        if name.endswith(ROUTER_BIAS):
            empty = torch.empty(shape, dtype=torch.float32, device=ranks.device)
            whole = biases[name] if rank == owner else empty
        elif rank == owner:
            if name in coded:
                numbers = nn.Parameter(coded[name].numbers(wide), requires_grad=False)
                own[name] = numbers, place_of(layout, name, numbers, shape)
            weight, place = own.pop(name)
            whole = place.whole(local(of(weight).detach())).contiguous()
        else:
            # A frozen matrix may have another dtype than trained weights.
            dtype = short_dtype(config, name, shape) or wide
            whole = torch.empty(shape, dtype=dtype, device=ranks.device)
        if pipeline is not None and owner != 0:
            dist.broadcast(whole, group=pipeline.group, group_src=owner)
        yield name, whole.cpu() if ranks.is_first else whole.new_empty(0)

"""Gathers how many tokens each expert gets in a step, and sums that up in two numbers per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from llm_core.model.experts.feed_forward import SparseFeedForward
from llm_core.parallel.layout import Layout

# L layers of the whole model · E experts of a layer


def layers_of(layout: Layout) -> dict[int, SparseFeedForward]:
    """The layers of experts of this process, by their number in the model."""
    blocks = enumerate(layout.bare.blocks)
    return {n: b.ffn for n, b in blocks if b is not None and isinstance(b.ffn, SparseFeedForward)}


def set_divisor(layout: Layout, divisor: Tensor) -> None:
    """Set what the losses of this step are divided by, those of experts included."""
    for layer in layers_of(layout).values():
        layer.divisor = divisor


def take_loads(layout: Layout, num_micro_batches: int) -> Tensor | None:
    """float64 loads_LE: pairs of tokens and experts in backward of the last micro batches, of this
    process's tokens; zeros in layers of other processes. None: the model has no experts.

    From torch 2.13 on, a pipeline runs one micro batch more before its first step, to learn shapes.
    """
    experts = layout.bare.config.experts
    if experts is None:
        return None
    shape = layout.bare.config.num_layers, experts.number
    loads_LE = torch.zeros(shape, dtype=torch.float64, device=layout.device)
    for number, layer in layers_of(layout).items():
        if (load_E := layer.take_load(num_micro_batches)) is not None:
            loads_LE[number] = load_E
    return loads_LE


def load_row(loads: Sequence[float], num_layers: int) -> dict[str, Any]:
    """For the row of a step: the largest load of each layer over its mean, and the entropy of loads
    in nats, which is log E where they are equal.

    loads: of all layers, one after another. Layers without a token have 0 and 0.
    """
    each = len(loads) // num_layers
    rows = [loads[begin : begin + each] for begin in range(0, len(loads), each)]
    return {
        "expert_load": [max(row) * each / sum(row) if sum(row) else 0.0 for row in rows],
        "expert_entropy": [_entropy(row) for row in rows],
    }


def _entropy(counts: Sequence[float]) -> float:
    total = sum(counts)
    shares = [count / total for count in counts if count]
    return -sum(share * math.log(share) for share in shares)

"""What is the state of a run? Weights and what the optimizer keeps of each, by names that do not depend on the layout.

Learning rate and data order are functions of the step, so the step is all the rest there is to save.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_core.optim import MOMENTS, moment
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local, place_of, placed_weights


def collect_state(layout: Layout, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Tensors by global names; a copy of a tied weight goes by the name of the weight, once. Writing to them changes the run."""
    state: dict[str, Tensor] = {}
    for name, parameter, place in placed_weights(layout):
        if f"model.{name}" in state:
            continue
        state[f"model.{name}"] = place.view(local(parameter.detach()))
        if layout.shares_state:
            place = place_of(layout, name, parameter, place.shape, rows=True)
        for kind in MOMENTS:
            state[f"optimizer.{name}.{kind}"] = place.view(moment(optimizer, parameter, kind))
    return state


def fill_copies(layout: Layout, optimizer: torch.optim.AdamW) -> None:
    """A process that holds both ends of a pipeline has read a tied weight into the first."""
    read: dict[str, nn.Parameter] = {}
    for name, parameter, _ in placed_weights(layout):
        source = read.setdefault(name, parameter)
        if source is not parameter:
            local(parameter.detach()).copy_(local(source.detach()))
            for kind in MOMENTS:
                moment(optimizer, parameter, kind).copy_(moment(optimizer, source, kind))

"""Collects the state of a run: trained weights, biases of routers, and what the optimizer keeps of
each, by names that do not depend on the layout.

Frozen weights are left out: they are what the run began with, and the trainer fills them from there
again. Learning rate and data order are functions of the step, so the step is all the rest there is
to save.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from llm_core.model.experts.router import router_biases
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local, placed_weights


class OptimizerState(Protocol):
    """What a checkpoint asks of an optimizer."""

    def state_views(self) -> dict[str, Tensor]:
        """All there is to save, by names that no layout changes; writing to it restores it."""

    def fill_copies(self) -> None:
        """After that: give the second copy of a tied weight the state of the first."""


def collect_state(layout: Layout, optimizer: OptimizerState) -> dict[str, Tensor]:
    """Tensors by global names; a copy of a tied weight goes by the name of the weight, once.
    Writing to them changes the run."""
    state: dict[str, Tensor] = {}
    for name, parameter, place in placed_weights(layout):
        if parameter.requires_grad and f"model.{name}" not in state:
            state[f"model.{name}"] = place.view(local(parameter.detach()))
    state |= {f"model.{name}": bias for name, bias in router_biases(layout.bare)}
    return state | layout.counts | optimizer.state_views()


def fill_copies(layout: Layout, optimizer: OptimizerState) -> None:
    """A process that holds both ends of a pipeline has read a tied weight into the first."""
    optimizer.fill_copies()
    read: dict[str, nn.Parameter] = {}
    for name, parameter, _ in placed_weights(layout):
        source = read.setdefault(name, parameter)
        if source is not parameter:
            local(parameter.detach()).copy_(local(source.detach()))

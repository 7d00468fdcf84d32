"""What is the state of a run? Weights and what the optimizer keeps of each, by names that do not
depend on the layout.

Learning rate and data order are functions of the step, so the step is all the rest there is to
save.
"""

from __future__ import annotations

from torch import Tensor, nn

from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local, placed_weights


def collect_state(layout: Layout, optimizer: Optimizer) -> dict[str, Tensor]:
    """Tensors by global names; a copy of a tied weight goes by the name of the weight, once.
    Writing to them changes the run."""
    state: dict[str, Tensor] = {}
    for name, parameter, place in placed_weights(layout):
        if f"model.{name}" not in state:
            state[f"model.{name}"] = place.view(local(parameter.detach()))
    return state | optimizer.state_views()


def fill_copies(layout: Layout, optimizer: Optimizer) -> None:
    """A process that holds both ends of a pipeline has read a tied weight into the first."""
    optimizer.fill_copies()
    read: dict[str, nn.Parameter] = {}
    for name, parameter, _ in placed_weights(layout):
        source = read.setdefault(name, parameter)
        if source is not parameter:
            local(parameter.detach()).copy_(local(source.detach()))

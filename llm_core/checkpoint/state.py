"""What is the state of a run? Weights and what the optimizer keeps of each, by names that do not depend on the layout.

Learning rate and data order are functions of the step, so the step is all the rest there is to save.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from llm_core.model.transformer import global_name
from llm_core.optim import MOMENTS, moment
from llm_core.parallel.apply import bare


def collect_state(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Tensors by global names; a copy of a tied weight goes by the name of the weight, once. Writing to them changes the run."""
    state: dict[str, Tensor] = {}
    for name, parameter in _by_global_name(model):
        if f"model.{name}" in state:
            continue
        state[f"model.{name}"] = parameter.detach()
        for kind in MOMENTS:
            state[f"optimizer.{name}.{kind}"] = moment(optimizer, parameter, kind)
    return state


def fill_copies(model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    """A process that holds both ends of a pipeline has read a tied weight into the first."""
    read: dict[str, nn.Parameter] = {}
    for name, parameter in _by_global_name(model):
        source = read.setdefault(name, parameter)
        if source is not parameter:
            parameter.detach().copy_(source.detach())
            for kind in MOMENTS:
                moment(optimizer, parameter, kind).copy_(moment(optimizer, source, kind))


def _by_global_name(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    transformer = bare(model)
    for name, parameter in transformer.named_parameters():
        yield global_name(transformer.config, name), parameter

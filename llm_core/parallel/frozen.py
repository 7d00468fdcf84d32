"""Freezes weights: they take part in forward, and have no gradient.

Everything that follows looks at `requires_grad`: DDP and FSDP send no gradient of a frozen weight,
optimizers keep no state for it, and checkpoints leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from llm_core.config import ConfigError
from llm_core.model.transformer import Transformer, global_name
from llm_core.parallel.degrees import StagePlan
from llm_core.parallel.places import whole_shapes

_LAYER = re.compile(r"blocks\.(\d+)\.")


def freeze(model: Transformer, plan: StagePlan | None, trains: Callable[[str], bool]) -> None:
    """Keep gradients for the weights that `trains` names, by global names.

    Raises ConfigError where the first stage of a pipeline would have nothing to take backward.
    """
    if plan is not None and not any(
        trains(name) for name in whole_shapes(model.config) if _is_first(name, plan)
    ):
        raise ConfigError(
            f"the first of {plan.num_stages} stages of the pipeline has frozen weights alone, and"
            " so no backward pass; train some weight of its layers, or set parallel.pp=1"
        )
    for name, weight in model.named_parameters():
        weight.requires_grad_(trains(global_name(model.config, name)))


def _is_first(name: str, plan: StagePlan) -> bool:
    """Whether the first stage has the weight."""
    layer = _LAYER.match(name)
    if layer is not None:
        return int(layer[1]) in plan.layers_of(0)
    return name.startswith(("embedding.", "positions."))

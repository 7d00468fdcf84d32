"""Freezes weights: they take part in forward, and have no gradient.

Everything that follows looks at `requires_grad`: DDP and FSDP send no gradient of a frozen weight,
optimizers keep no state for it, and checkpoints leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from llm_core.config import ConfigError
from llm_core.model.adapter import AdaptedModelConfig, coded_layer, is_factor
from llm_core.model.config import ModelConfig
from llm_core.model.nf4 import CodedWeight
from llm_core.model.transformer import Transformer, global_name
from llm_core.parallel.degrees import StagePlan
from llm_core.parallel.places import local, whole_shapes

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
    _shorten(model)


def short_dtype(config: ModelConfig, name: str, shape: Sequence[int]) -> torch.dtype | None:
    """Dtype of a frozen matrix beside an adapter; None: that of the rest of the model."""
    if not isinstance(config, AdaptedModelConfig) or config.adapter.base_dtype == "fp32":
        return None
    # Norms and biases are a thousandth of a model, and lose more.
    is_short = len(shape) > 1 and not is_factor(name) and coded_layer(config, name) is None
    return torch.bfloat16 if is_short else None


def _shorten(model: Transformer) -> None:
    """Give frozen matrices the dtype or codes that the adapter asks for; on the meta device."""
    short: dict[nn.Parameter, nn.Parameter] = {}
    for name, weight in list(model.named_parameters(remove_duplicate=False)):
        if (layer := coded_layer(model.config, name)) is not None:
            assert isinstance(model.config, AdaptedModelConfig)
            owner = model.get_submodule(name.removesuffix(".weight"))
            del owner.weight  # torch lets only another parameter replace one
            owner.weight = CodedWeight(model.config, layer, *weight.shape)
            continue
        if (dtype := short_dtype(model.config, name, weight.shape)) is None:
            continue
        # By parameter and not by name, so that tied weights stay one.
        if weight not in short:
            short[weight] = nn.Parameter(weight.to(dtype), requires_grad=False)
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, short[weight])


def coded_weights(model: Transformer) -> Iterator[tuple[str, CodedWeight]]:
    """(name, weight) of each weight on this process that is kept in codes."""
    for name, module in model.named_modules():
        if isinstance(module, CodedWeight):
            yield name, module


def frozen_bytes(model: Transformer, device: torch.device) -> int:
    """Of frozen weights of this process on a device, as numbers or in codes."""
    frozen = [local(weight) for weight in model.parameters() if not weight.requires_grad]
    frozen += [part for _, codes in coded_weights(model) for part in codes.parts]
    return sum(weight.nbytes for weight in frozen if weight.device.type == device.type)


def _is_first(name: str, plan: StagePlan) -> bool:
    """Whether the first stage has the weight."""
    layer = _LAYER.match(name)
    if layer is not None:
        return int(layer[1]) in plan.layers_of(0)
    return name.startswith(("embedding.", "positions."))

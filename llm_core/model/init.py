"""Initial weights that do not depend on the layout: each parameter has a random stream of its own.

The stream is seeded by the run's seed and the parameter's name, and always draws the whole tensor,
so one process and any sharding start from the same numbers, whatever the order of modules. Normal
weights whose standard deviation falls with the square root of the width, 0.018 at GPT-2's 768
(which took 0.02 at every width; narrow models learn slower from that); projections back into the
residual stream are smaller by sqrt(2 x layers), so that its variance does not grow with depth
(Radford et al., 2019, section 2.3). Norm weights are ones, biases zeros.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from llm_core.model.transformer import Transformer, global_name

Write = Callable[[str, torch.nn.Parameter, Tensor], None]
"""(global name, parameter, whole initial value): writes the value, or this rank's piece."""


def init_weights(
    model: Transformer,
    seed: int,
    write: Write | None = None,
    shapes: Mapping[str, torch.Size] | None = None,
) -> None:
    """Give every parameter its initial value. Costs one whole parameter of extra memory at a time.

    shapes: of the whole weights by global name, where parameters are pieces of them.
    """
    weight_std = 0.5 / math.sqrt(model.config.dim)
    residual_std = weight_std / math.sqrt(2 * model.config.num_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leads_back = name.endswith(("attention.out.weight", "ffn.down.weight"))
            std = residual_std if leads_back else weight_std
            found = global_name(model.config, name)
            shape = parameter.shape if shapes is None else shapes[found]
            value = initial_value(found, shape, std, seed)
            if write is None:
                parameter.copy_(value)
            else:
                write(found, parameter, value)


def initial_value(name: str, shape: torch.Size, std: float, seed: int) -> Tensor:
    """The whole float32 value of one parameter, made on the CPU so that devices agree."""
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    stream = int.from_bytes(
        hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little", signed=True
    )
    return torch.empty(shape).normal_(std=std, generator=torch.Generator().manual_seed(stream))

"""Makes the weights of a model of experts from those of a dense one (Komatsuzaki et al., 2023,
"Sparse Upcycling").

Each expert begins as the dense feed-forward, and a router begins as in a new model. Gates of a
token that sum to 1 then give the output of that feed-forward, so the first logits are those of the
dense model. A shared expert begins with an output of zero. Weights are made a piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.export import read_config, read_weights
from llm_core.huggingface.growth import read_grown_weights
from llm_core.huggingface.names import Made
from llm_core.model.config import ModelConfig
from llm_core.model.fused import split_gate_up
from llm_core.model.init import drawn, std_of
from llm_core.model.transformer import Transformer

EXPERTS = "ffn.experts."


def check_upcycling(config: ModelConfig) -> None:
    """Raises ConfigError where the first logits would not be those of the dense model."""
    experts = config.experts
    if experts is None or not experts.normalised or experts.scale != 1:
        chosen = None if experts is None else (experts.normalised, experts.scale)
        raise ConfigError(
            "a dense train.init_from becomes experts whose gates sum to 1, and"
            f" model.experts.normalised and scale are {chosen}; set model.experts.normalised=true"
            " and model.experts.scale=1"
        )


def read_initial_weights(folder: Path, config: ModelConfig, seed: int, grows: bool = False) -> Made:
    """Of the model in a folder, for one of `config`: as `read_weights`, or as `read_grown_weights`
    where it `grows`, and with experts made from a dense one. Raises ConfigError."""
    read = read_grown_weights if grows else read_weights
    if config.experts is None or read_config(folder).experts is not None:
        return read(folder, config)
    return upcycled(read(folder, replace(config, experts=None)), config, seed)


def upcycled(dense: Made, config: ModelConfig, seed: int) -> Made:
    """Weights of `config`, which has experts, from those of the same model without.

    seed: of what is new. Raises ConfigError as `check_upcycling`.
    """
    check_upcycling(config)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in Transformer(config).state_dict().items()}
    makers: dict[str, Callable[[slice], Tensor]] = {}
    for name, shape in shapes.items():
        if name in dense:
            makers[name] = partial(dense.rows, name)
        elif EXPERTS in name:
            makers[name] = partial(_expert_rows, dense, config, name, shape[0])
        else:
            makers[name] = partial(_new_rows, config, name, shape, seed)
    return Made(makers)


def _expert_rows(dense: Made, config: ModelConfig, name: str, num_rows: int, rows: slice) -> Tensor:
    """Experts lie below each other, and all are alike."""
    source = dense[name.replace(EXPERTS, "ffn.")]
    one = source if name.endswith("down.weight") else torch.cat(split_gate_up(config, source))
    return one[torch.arange(*rows.indices(num_rows)) % len(one)]


def _new_rows(config: ModelConfig, name: str, shape: torch.Size, seed: int, rows: slice) -> Tensor:
    """Of a router, as in a new model, and of a shared expert that adds nothing yet."""
    if name.endswith(("router.bias", "shared.down.weight")):
        return torch.zeros(shape)[rows]
    return drawn(name, shape, std_of(config, name, shape), seed)[rows]

"""Puts rounded weights into a model.

Rounded are the matrices of blocks, the embedding and the head. The last two are in int8 whatever
the format: in 4 bits a head costs more quality than all blocks together. A tied embedding is
its head's table. Norms, biases and learned positions stay as they are: they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig
from llm_core.model.experts.router import router_biases
from llm_core.model.transformer import EMBEDDING, HEAD, Transformer, global_name
from llm_core.quantize.formats import Format, Rounded, round_weight
from llm_core.quantize.layers import RoundedEmbedding, RoundedLinear

Formats = Mapping[str, Format]
"""Name of a weight in `Transformer.state_dict()` (a tied head has the embedding's) → its format."""


def formats_of(config: ModelConfig, format: Format) -> dict[str, Format]:
    """The format of each rounded weight, in the order of the model. Raises ConfigError for a
    model of experts."""
    if config.experts is not None:
        raise ConfigError(
            f"weights are not rounded to {format} in a model of experts; serve them as they are"
        )
    with torch.device("meta"):
        model = Transformer(config)
    layers = [name for name, layer in model.blocks.named_modules() if isinstance(layer, nn.Linear)]
    found: dict[str, Format] = {f"blocks.{name}.weight": format for name in layers}
    return found | dict.fromkeys([EMBEDDING, global_name(config, HEAD)], "int8")


def shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Of every weight that is stored, by name: a tied head has the embedding's."""
    with torch.device("meta"):
        state = Transformer(config).state_dict()
    return {global_name(config, name): tensor.shape for name, tensor in state.items()}


def assemble(
    config: ModelConfig,
    formats: Formats,
    rounded: Callable[[str, Format], Rounded],
    plain: Callable[[str], Tensor],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Transformer:
    """A model in evaluation mode, its tensors asked for and placed one at a time.

    rounded, plain: the weight of a name; plain ones are cast.
    """
    with torch.device("meta"):
        model = Transformer(config)
    for name, format in formats.items():
        put(model, name, rounded(name, format).to(device), dtype)
    fill(model, plain, dtype, device)
    return model


def fill(
    model: Transformer,
    plain: Callable[[str], Tensor],
    dtype: torch.dtype,
    device: torch.device | str,
) -> None:
    """Give a model on the meta device its weights, one at a time, and set it to evaluate."""
    config, state = model.config, dict[str, Tensor]()
    buffers = {name for name, _ in router_biases(model)}
    for name in model.state_dict():
        same = state.get(global_name(config, name))
        own = torch.float32 if name in buffers else dtype
        state[name] = plain(name).to(device, own) if same is None else same
    model.load_state_dict(state, strict=True, assign=True)
    if isinstance(model.embedding, nn.Embedding) and config.tied_embeddings:
        model.head.weight = model.embedding.weight  # assigning replaced both; tie them again
    model.eval().requires_grad_(False)


def round_model(model: Transformer, format: Format) -> Transformer:
    """The same model with rounded weights in place of its own, which are dropped one by one."""
    for name, each in formats_of(model.config, format).items():
        weight = model.get_parameter(name)
        put(model, name, round_weight(weight, each), weight.dtype)
    return model


def put(model: Transformer, name: str, rounded: Rounded, dtype: torch.dtype) -> None:
    """Let the layer of weight `name` compute with `rounded`. dtype: of the stream."""
    if name == EMBEDDING:
        table = RoundedLinear(rounded)
        model.embedding = RoundedEmbedding(table, dtype)
        if model.config.tied_embeddings:
            model.head = table
        return
    path = name.removesuffix(".weight")
    parent, _, own = path.rpartition(".")
    layer = RoundedLinear(rounded, model.get_submodule(path).bias)
    setattr(model.get_submodule(parent), own, layer)


def rounded_weights(model: Transformer) -> dict[str, Rounded]:
    """By name, as in `Formats`."""
    return {
        EMBEDDING if name == "embedding.table" else f"{name}.weight": layer.stored
        for name, layer in model.named_modules()  # the embedding first, a tied head once
        if isinstance(layer, RoundedLinear)
    }


def num_bytes(model: nn.Module) -> int:
    """Of all weights as they are held, rounded or not, each counted once."""
    rounded = {m for m in model.modules() if isinstance(m, RoundedLinear | RoundedEmbedding)}
    in_rounded = {id(p) for layer in rounded for p in layer.parameters()}
    plain = sum(p.nbytes for p in model.parameters() if id(p) not in in_rounded)
    return plain + sum(layer.num_bytes for layer in rounded)

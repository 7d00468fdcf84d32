"""What a run with an adapter trains, starts from and publishes.

It trains the factors alone. Checkpoints hold these and their optimizer state; the frozen model is
read from `train.init_from` again, and a digest says whether it is still the same. What is published
is the merged model, which every reader of the run takes as any other, and beside it, in `adapter/`,
the factors as PEFT has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.adapter import read_adapter, write_adapter
from llm_core.huggingface.export import read_weights
from llm_core.huggingface.files import read_tensors
from llm_core.huggingface.names import Made
from llm_core.model.adapter import AdaptedModelConfig, is_factor
from llm_core.model.lora import merged
from llm_core.model.nf4 import as_it_rests
from llm_core.optim.groups import is_trained
from llm_core.parallel.layout import Layout
from llm_core.parallel.weights import initialize, write_weights
from llm_core.training.run_config import RunConfig
from llm_core.training.workdir import publish_model

ADAPTER_FOLDER = "adapter"
"""In the folder of a published model."""
SAMPLES = 1024
"""Numbers of each tensor that a digest reads, from first to last: any training moves all."""


def trains(config: RunConfig, name: str) -> bool:
    """Whether a run updates the weight of this name."""
    return is_trained(name, config.optim) and (config.adapter.kind == "none" or is_factor(name))


def is_plain(name: str) -> bool:
    """Whether a weight is one of the model itself."""
    return not is_factor(name)


def fill_factors(layout: Layout, config: RunConfig) -> None:
    """Give factors the values that the run begins with. Raises ConfigError where those of
    `adapter.init_from` are of another kind."""
    initialize(layout, config.train.seed, is_factor)
    if config.adapter.decomposed:
        write_weights(layout, lengths_of_base(config), is_length)
    if config.adapter.init_from is not None:
        assert isinstance(config.trained_model, AdaptedModelConfig)
        found = read_adapter(config.adapter.init_from, config.trained_model)
        write_weights(layout, found, is_factor)


def is_length(name: str) -> bool:
    """Whether a factor holds the lengths of rows."""
    return name.endswith(".lora.m")


def lengths_of_base(config: RunConfig) -> Made:
    """Lengths of the rows of the frozen matrices, as they rest: with them training begins with the
    base as it is."""
    model, folder = config.trained_model, config.train.init_from
    assert isinstance(model, AdaptedModelConfig)
    if folder is None:
        raise ConfigError(
            "adapter.decomposed (true) begins with the lengths of the rows of a model, and"
            " train.init_from is null; set train.init_from=FOLDER"
        )
    weights = read_weights(folder, config.model)

    def lengths(name: str, rows: slice) -> Tensor:
        whole = as_it_rests(model, name, weights.rows(name, rows))
        return whole.to(torch.promote_types(whole.dtype, torch.float32)).norm(dim=1)

    layers = (f"blocks.{n}.{each}" for n in range(model.num_layers) for each in model.factored)
    return Made({f"{each}.lora.m": partial(lengths, f"{each}.weight") for each in layers})


def base_digest(folder: Path) -> str:
    """Of the tensors of a model folder: names, shapes and `SAMPLES` numbers of each. Raises
    ConfigError where they cannot be read."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(read_tensors(folder).items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        flat = tensor.view(-1)
        some = flat[:: max(1, len(flat) // SAMPLES)]
        found.update(some.double().numpy().tobytes())
    return found.hexdigest()


def publish_adapted(
    config: RunConfig,
    weights: Iterable[tuple[str, Tensor]],
    workdir: Path,
    eos_id: int | None,
    turn_end_ids: Sequence[int],
    folder: str,
) -> None:
    """Publish the merged model, as `publish_model`, with the factors beside it. weights: on the
    first rank; the merged ones are as precise as factors."""
    model = config.trained_model
    assert isinstance(model, AdaptedModelConfig)
    factors: dict[str, Tensor] = {}

    def beside(unpublished: Path) -> None:
        write_adapter(unpublished / ADAPTER_FOLDER, model, factors, config.train.init_from)

    whole = merged(model, noted(weights, factors))
    publish_model(config.model, whole, workdir, eos_id, turn_end_ids, folder, beside)


def noted(
    weights: Iterable[tuple[str, Tensor]], factors: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The weights, of which factors are kept."""
    for name, weight in weights:
        if is_factor(name):
            factors[name] = weight
        yield name, weight


def with_factors(
    base: Mapping[str, Tensor], factors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """All weights of a model with an adapter, of which memory holds one beside the factors."""
    yield from factors.items()
    for name in base:
        yield name, base[name]

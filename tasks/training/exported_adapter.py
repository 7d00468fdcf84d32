"""Writes a trained adapter, alone or merged with the model that it was trained beside.

A merge is a sum in float32, rounded once to the dtype that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.adapter import (
    CONFIG_FILE,
    adapted_as_in,
    base_of,
    read_adapter,
    write_adapter,
)
from llm_core.huggingface.export import ModelWriter, read_config, read_weights
from llm_core.huggingface.files import CONFIG_FILE as MODEL_CONFIG
from llm_core.huggingface.files import copy_beside, read_values
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.lora import merged
from llm_core.model.nf4 import as_it_rests
from llm_core.training.adapted import base_digest, with_factors
from llm_core.training.run_config import RunConfig


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT."""
    return (folder / CONFIG_FILE).is_file()


def factors_alone(
    run: RunConfig, factors: Iterable[tuple[str, Tensor]], folder: Path
) -> torch.dtype:
    """Write the factors of a checkpoint as a PEFT folder; returns their dtype."""
    model, found = run.trained_model, dict(factors)
    assert isinstance(model, AdaptedModelConfig)
    write_adapter(folder, model, found, run.train.init_from)
    return next(iter(found.values())).dtype


def with_base(
    run: RunConfig, factors: Iterable[tuple[str, Tensor]], digest: str | None
) -> Iterator[tuple[str, Tensor]]:
    """(name, weight) of the merged model. digest: of the base that the factors were trained beside;
    None: unknown. Raises ConfigError where that is in no folder, or has changed since."""
    model, base = run.trained_model, run.train.init_from
    assert isinstance(model, AdaptedModelConfig)
    if base is None:
        raise ConfigError(
            "train.init_from is null, so the frozen model is in no file; export the model that the"
            " run publishes, or export.adapter=peft"
        )
    if digest is not None and base_digest(base) != digest:
        raise ConfigError(
            f"train.init_from ({base}) is not the model that the factors were trained beside; put"
            " that back, or take the factors alone with export.adapter=peft"
        )
    whole = with_factors(read_weights(base, run.model), dict(factors))
    yield from merged(model, ((name, as_it_rests(model, name, one)) for name, one in whole))


def merge_folder(
    folder: Path, base: Path | None, out: Path, dtype: torch.dtype | None
) -> torch.dtype:
    """Merge a PEFT folder with its base, whose tokenizer it takes; returns the dtype of what was
    written. Raises ConfigError where the base is not a folder on this machine."""
    named = base_of(folder) if base is None else str(base)
    # An empty name would be the working directory.
    if not named or not (Path(named) / MODEL_CONFIG).is_file():
        raise ConfigError(
            f"the frozen model of {folder} ({named or 'not named'}) is not a model folder on this"
            " machine; set export.base=FOLDER"
        )
    base = Path(named)
    plain = read_config(base)
    model, weights = adapted_as_in(folder, plain), read_weights(base, plain)
    dtype = dtype or weights["embedding.weight"].dtype
    ends = read_values(base).get("eos_token_id")
    first, *others = ends if isinstance(ends, list) and ends else [ends]
    writer = ModelWriter(plain, dtype, out, first, others)
    whole = with_factors(weights, read_adapter(folder, model))
    for name, weight in merged(model, ((n, as_it_rests(model, n, one)) for n, one in whole)):
        writer.put(name, weight)
    copy_beside(base, out)
    writer.finish()
    return dtype

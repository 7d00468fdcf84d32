"""Writes a trained adapter, alone or merged with the model that it was trained beside.

A merge is a sum in float32, rounded once to the numbers that are asked for.
"""

from __future__ import annotations

import shutil
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
from llm_core.huggingface.files import read_values
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.lora import merged
from llm_core.training.adapted import base_digest, with_factors
from llm_core.training.run_config import RunConfig

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def is_adapter(folder: Path) -> bool:
    """Whether a folder is one of PEFT."""
    return (folder / CONFIG_FILE).is_file()


def factors_alone(
    run: RunConfig, factors: Iterable[tuple[str, Tensor]], folder: Path
) -> torch.dtype:
    """Write a PEFT folder of the factors of a checkpoint; their dtype."""
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
    yield from merged(model, with_factors(read_weights(base, run.model), dict(factors)))


def merge_folder(
    folder: Path, base: Path | None, out: Path, dtype: torch.dtype | None
) -> torch.dtype:
    """Write the model of a PEFT folder and its base, with the tokenizer of the latter; the dtype of
    what was written. Raises ConfigError where the base is not a folder here."""
    base = base or Path(base_of(folder))
    if not (base / "config.json").is_file():
        raise ConfigError(
            f"the frozen model of {folder} ({base}) is not a model folder on this machine; set"
            " export.base=FOLDER"
        )
    plain = read_config(base)
    model, weights = adapted_as_in(folder, plain), read_weights(base, plain)
    dtype = dtype or weights["embedding.weight"].dtype
    ends = read_values(base).get("eos_token_id")
    first, *others = ends if isinstance(ends, list) and ends else [ends]
    writer = ModelWriter(plain, dtype, out, first, others)
    for name, weight in merged(model, with_factors(weights, read_adapter(folder, model))):
        writer.put(name, weight)
    for name in TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, out / name)
    writer.finish()
    return dtype

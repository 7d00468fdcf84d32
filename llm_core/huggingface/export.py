"""Writes a trained model as a Hugging Face folder, and reads one: `config.json` and
`model.safetensors`, or its numbered parts.

Which names and settings stand for which is said in `llm_core.huggingface.names` and
`llm_core.huggingface.config`. The bytes written depend on the weights and the config alone. Only
safetensors are read: pickled weights would run code. `config.json` is written last, by renaming,
when all else is synced: a folder without it is not a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.durable import sync_file, sync_folder, write_durably
from llm_core.huggingface.config import hugging_face_config, model_config
from llm_core.huggingface.names import from_hugging_face, to_hugging_face
from llm_core.json_files import UnreadableJson, is_plain_name, read_json
from llm_core.model.config import ModelConfig
from llm_core.model.transformer import Transformer

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
MAX_JSON_BYTES = 64 << 20
PART_BYTES = 5 * 10**9
"""As Hugging Face cuts large models."""


def export_model(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    folder: Path,
    eos_id: int | None = None,
    part_bytes: int = PART_BYTES,
) -> None:
    """Write whole (unsharded) weights, named as in `Transformer.state_dict()`, as a Hugging Face
    folder.

    part_bytes: what a file holds at most, but for a tensor that is larger; several files have an
    index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_FILE, INDEX_FILE):  # of an earlier model
        (folder / name).unlink(missing_ok=True)
    weights = to_hugging_face(config, state)
    parts: list[list[str]] = []
    room = 0
    for name in sorted(weights):
        if not parts or weights[name].nbytes > room:
            parts.append([])
            room = part_bytes
        parts[-1].append(name)
        room -= weights[name].nbytes
    files = [WEIGHTS_FILE]
    if len(parts) > 1:
        count = len(parts)
        files = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
        places = {name: file for file, names in zip(files, parts, strict=True) for name in names}
        index = {
            "metadata": {"total_size": sum(weight.nbytes for weight in weights.values())},
            "weight_map": places,
        }
        write_durably(folder / INDEX_FILE, json.dumps(index, indent=2, sort_keys=True) + "\n")
    for file, names in zip(files, parts, strict=True):
        tensors = {name: weights[name].contiguous().cpu() for name in names}
        save_file(tensors, folder / file, {"format": "pt"})
        sync_file(folder / file)
    dtype = str(state["embedding.weight"].dtype).removeprefix("torch.")
    text = json.dumps(hugging_face_config(config, dtype, eos_id), indent=2, sort_keys=True)
    sync_folder(folder)
    write_durably(folder / CONFIG_FILE, text + "\n")


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """The model of a Hugging Face folder, on the CPU, in evaluation mode. Raises ConfigError."""
    config = read_config(folder)
    # First: what the files hold bounds what the config may claim.
    weights = read_weights(folder, config)
    with torch.device("meta"):
        model = Transformer(config)
    state = {name: tensor.to(dtype) for name, tensor in weights.items()}
    model.load_state_dict(state, strict=True, assign=True)
    if config.tied_embeddings:  # assigning replaced both names; tie them again
        model.head.weight = model.embedding.weight
    return model.eval().requires_grad_(False)


def read_config(folder: Path) -> ModelConfig:
    """Raises ConfigError where the folder has no `config.json` or one of another kind of model."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} has no {CONFIG_FILE}; give the folder of a Hugging Face model")
    values = _read_json(file)
    try:
        return model_config(values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    except KeyError as error:
        raise ConfigError(
            f"{file} has no {error.args[0]}; give the folder of a Hugging Face model"
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, one or numbered parts. Raises ConfigError if there are none."""
    files = [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        index = _read_json(folder / INDEX_FILE)
        named = index.get("weight_map") if isinstance(index, dict) else None
        if (
            not isinstance(named, dict)
            or not named
            or not all(isinstance(name, str) for name in named.values())
        ):
            raise ConfigError(
                f"{folder / INDEX_FILE} has no weight_map of tensors to files; fetch it again"
            )
        if odd := sorted(name for name in named.values() if not is_plain_name(name)):
            raise ConfigError(
                f"{folder / INDEX_FILE} names {odd[0]!r}, which is not a file of its folder; fetch"
                " it again"
            )
        files = [folder / name for name in sorted(set(named.values()))]
    for file in files:
        if not file.is_file():
            raise ConfigError(
                f"{folder} has no {file.name}; only safetensors are read, save it as such"
            )
    return files


def read_weights(folder: Path, config: ModelConfig) -> Mapping[str, Tensor]:
    """Weights named as in `Transformer.state_dict()`, on the CPU, in the numbers of the files, each
    read when it is asked for.

    Files are mapped, so processes of one machine share what they read. Raises ConfigError for a
    tensor that does not fit.
    """
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            found = load_file(file)
        except SafetensorError as error:
            raise ConfigError(
                f"{file} is cut off or not a safetensors file ({error}); fetch it again"
            ) from error
        if twice := sorted(found.keys() & weights.keys()):
            raise ConfigError(
                f"{twice[0]} is in {file.name} and in a file before it in {folder}; keep the files"
                " of one model"
            )
        weights |= found
    try:
        return from_hugging_face(config, weights)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error


def _read_json(file: Path) -> Any:
    try:
        return read_json(file, MAX_JSON_BYTES)
    except UnreadableJson as error:
        raise ConfigError(f"{file} cannot be read as JSON ({error}); fetch it again") from error

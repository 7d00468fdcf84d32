"""Writes and reads the files of a model folder: `config.json` and `model.safetensors`, or its
numbered parts with an index.

Only safetensors are read: pickled weights would run code. `config.json` is written last, by
renaming, when all else is synced: a folder without it is not a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.durable import sync_file, sync_folder, write_durably
from llm_core.json_files import UnreadableJson, is_plain_name, read_json

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
MAX_JSON_BYTES = 64 << 20
PART_BYTES = 5 * 10**9
"""As Hugging Face cuts large models."""


def write_folder(
    folder: Path, weights: Mapping[str, Tensor], values: Mapping[str, Any], part_bytes: int
) -> None:
    """Weights by name, and what `config.json` says.

    part_bytes: what a file holds at most, but for a tensor that is larger; several files have an
    index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_FILE, INDEX_FILE):  # of an earlier model
        (folder / name).unlink(missing_ok=True)
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
    sync_folder(folder)
    write_durably(folder / CONFIG_FILE, json.dumps(values, indent=2, sort_keys=True) + "\n")


def read_values(folder: Path) -> Any:
    """What `config.json` holds. Raises ConfigError where there is none."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} has no {CONFIG_FILE}; give the folder of a Hugging Face model")
    return _read_json(file)


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


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, on the CPU; files are mapped, so that a tensor takes memory when it
    is read, and processes of one machine share it.

    Raises ConfigError for damaged files and for a tensor in two of them.
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
    return weights


def _read_json(file: Path) -> Any:
    try:
        return read_json(file, MAX_JSON_BYTES)
    except UnreadableJson as error:
        raise ConfigError(f"{file} cannot be read as JSON ({error}); fetch it again") from error

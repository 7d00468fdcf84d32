"""Writes and reads the files of a model folder: `config.json` and `model.safetensors`, or its
numbered parts with an index.

Only safetensors are read: pickled weights would run code. `config.json` is written last, by
renaming, when all else is synced: a folder without it is not a model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.durable import sync_file, sync_folder, write_durably
from llm_core.json_files import UnreadableJson, is_plain_name, read_json
from llm_core.tensor_files import Facts, TensorFile, facts_of

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
"""Of a PEFT folder, which has no other config."""
WEIGHTS = (".safetensors", ".safetensors.index.json")
"""Ends of the names of files that hold weights or list them."""
MAX_JSON_BYTES = 64 << 20
PART_BYTES = 5 * 10**9
"""As Hugging Face cuts large models."""


class FolderWriter:
    """A model folder that is being written, whose tensors come in any order; memory holds one.

    facts: of all tensors. values: what `config.json` says. part_bytes: what a file holds at most,
    but for a tensor that is larger; several files have an index.
    """

    def __init__(
        self, folder: Path, facts: Mapping[str, Facts], values: Mapping[str, Any], part_bytes: int
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CONFIG_FILE, INDEX_FILE):  # of an earlier model
            (folder / name).unlink(missing_ok=True)
        parts: list[list[str]] = []
        room = 0
        for name in sorted(facts):
            if not parts or facts[name].num_bytes > room:
                parts.append([])
                room = part_bytes
            parts[-1].append(name)
            room -= facts[name].num_bytes
        files, count = [WEIGHTS_FILE], len(parts)
        if count > 1:
            files = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
            places = {
                name: file for file, names in zip(files, parts, strict=True) for name in names
            }
            index = {
                "metadata": {"total_size": sum(fact.num_bytes for fact in facts.values())},
                "weight_map": places,
            }
            write_durably(folder / INDEX_FILE, json.dumps(index, indent=2, sort_keys=True) + "\n")
        self._folder, self._values, self._names = folder, values, files
        self._files: dict[str, TensorFile] = {}
        self._open: list[TensorFile] = []
        for file, names in zip(files, parts, strict=True):
            about = {"format": "pt"}
            one = TensorFile(folder / file, {name: facts[name] for name in names}, about)
            self._open.append(one)
            self._files |= dict.fromkeys(names, one)

    def put(self, name: str, tensor: Tensor) -> None:
        self._files[name].put(name, tensor)

    def finish(self) -> None:
        """After all tensors: sync, and make it a model."""
        for file in self._open:
            file.close()
        for name in self._names:
            sync_file(self._folder / name)
        sync_folder(self._folder)
        text = json.dumps(self._values, indent=2, sort_keys=True) + "\n"
        write_durably(self._folder / CONFIG_FILE, text)


def copy_beside(model: Path, out: Path) -> None:
    """Copy what a model folder has beside `config.json` and weights, such as its tokenizer."""
    for file in model.iterdir():
        if file.is_file() and not file.name.endswith(WEIGHTS) and file.name != CONFIG_FILE:
            shutil.copyfile(file, out / file.name)


def write_folder(
    folder: Path, weights: Mapping[str, Tensor], values: Mapping[str, Any], part_bytes: int
) -> None:
    """Write all weights at once, as `FolderWriter`."""
    facts = {name: facts_of(weight) for name, weight in weights.items()}
    writer = FolderWriter(folder, facts, values, part_bytes)
    for name in sorted(weights):
        writer.put(name, weights[name])
    writer.finish()


def read_values(folder: Path) -> Any:
    """What `config.json` holds. Raises ConfigError where there is none."""
    file = folder / CONFIG_FILE
    if not file.is_file() and (folder / ADAPTER_FILE).is_file():
        raise ConfigError(
            f"{folder} is an adapter of PEFT, not a model; merge it with its base (textmill export"
            f" folder={folder} out=DIR), or train it further as adapter.init_from"
        )
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

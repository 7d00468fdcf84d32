"""Checks that the model training starts from fits the model and the tokenizer of this run.

Reads `config.json` and, where both sides have one, `tokenizer.json`. Weights are left to the
trainer. Every difference is one line with its way out; nothing is resized or cut to fit, because
ids that mean other pieces train on noise in silence.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError, to_plain
from llm_core.json_files import UnreadableJson, read_json
from llm_core.model.config import ModelConfig

TOKENIZER_FILE = "tokenizer.json"


def initial_model_files(folder: Path, model: ModelConfig) -> dict[str, Path]:
    """{name: file} of what training starts from. Raises ConfigError where it is not there or of
    another shape than `model`."""
    from llm_core.huggingface.export import read_config
    from llm_core.huggingface.files import CONFIG_FILE, weight_files

    found = read_config(folder)
    for field in dataclasses.fields(ModelConfig):
        wanted, there = getattr(model, field.name), getattr(found, field.name)
        # Rotary positions have no weights, so a run may settle for shorter or longer sequences.
        is_free = field.name == "max_seq_len" and found.positions == "rotary"
        if wanted != there and not is_free and not (field.name == "vocab_size" and wanted == 0):
            raise ConfigError(
                f"model.{field.name} ({_setting(wanted)}) must be {_setting(there)}, as in"
                f" train.init_from ({folder}); set model.{field.name}={_setting(there)}"
            )
    return {CONFIG_FILE: folder / CONFIG_FILE} | {file.name: file for file in weight_files(folder)}


def check_vocabulary(folder: Path, tokenizer: Path, num_ids: int) -> int:
    """The number of ids of the model in `folder`. Raises ConfigError where the tokenizer's ids are
    more, or mean other pieces."""
    from llm_core.huggingface.export import read_config

    vocab_size = read_config(folder).vocab_size
    way_out = f"set tokenizer=import tokenizer.path={folder}"
    if num_ids > vocab_size:
        raise ConfigError(
            f"the tokenizer has {num_ids} ids, but the model in train.init_from ({folder}) has"
            f" only {vocab_size}; {way_out}"
        )
    theirs, ours = (_ids(place / TOKENIZER_FILE) for place in (folder, tokenizer))
    if theirs and ours and theirs != ours:
        same = sum(theirs.get(piece) == number for piece, number in ours.items())
        raise ConfigError(
            f"{len(ours) - same} of the {len(ours)} pieces of the tokenizer have other ids in"
            f" train.init_from ({folder}), where the model learnt them; {way_out}"
        )
    return vocab_size


def _setting(value: Any) -> str:
    """As an override says it."""
    if dataclasses.is_dataclass(value):
        return "{" + ",".join(f"{name}:{part}" for name, part in to_plain(value).items()) + "}"
    return "null" if value is None else str(value)


def _ids(file: Path) -> dict[str, int]:
    """Piece → id of a `tokenizer.json`; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        vocabulary = read_json(file).get("model", {}).get("vocab", {})
    except (UnreadableJson, AttributeError) as error:
        raise ConfigError(
            f"train.init_from: {file} is not a tokenizer ({error}); fetch it again"
        ) from error
    if isinstance(vocabulary, dict):
        return vocabulary
    return {row[0]: number for number, row in enumerate(vocabulary)}  # Unigram: pairs with scores

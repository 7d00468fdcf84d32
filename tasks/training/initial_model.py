"""Checks that the model training starts from fits the model and the tokenizer of this run.

Reads `config.json` and, where both sides have one, `tokenizer.json`. Weights are left to the
trainer. Every difference is one line with its way out, because ids that mean other pieces train on
noise in silence. Only `train.init_vocab=grow` makes room, for ids beyond those of the model. Only
the feed-forwards of a dense model become experts.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from llm_core.config import ConfigError, to_plain
from llm_core.json_files import UnreadableJson, read_json
from llm_core.model.adapter import AdapterConfig
from llm_core.model.config import ModelConfig

TOKENIZER_FILE = "tokenizer.json"
MULTIPLE = 8
"""Matrix units work in tiles of eight numbers, and tensor parallelism divides rows."""


def initial_model_files(folder: Path, model: ModelConfig) -> dict[str, Path]:
    """{name: file} of what training starts from. Raises ConfigError where it is not there or of
    another shape than `model`."""
    from llm_core.huggingface.export import read_config
    from llm_core.huggingface.files import CONFIG_FILE, weight_files
    from llm_core.huggingface.upcycling import check_upcycling

    found = read_config(folder)
    if model.experts is not None and found.experts is None:
        check_upcycling(model)
        found = dataclasses.replace(found, experts=model.experts)
    for field in dataclasses.fields(ModelConfig):
        wanted, there = getattr(model, field.name), getattr(found, field.name)
        # Rotary positions have no weights, so a run may settle for shorter or longer sequences, and
        # slow down what turned freely.
        is_free = found.positions == "rotary" and (
            field.name == "max_seq_len" or (field.name == "rope_scaling" and there is None)
        )
        if wanted != there and not is_free and not (field.name == "vocab_size" and wanted == 0):
            raise ConfigError(
                f"model.{field.name} ({_setting(wanted)}) must be {_setting(there)}, as in"
                f" train.init_from ({folder}); set model.{field.name}={_setting(there)}"
            )
    return {CONFIG_FILE: folder / CONFIG_FILE} | {file.name: file for file in weight_files(folder)}


def initial_adapter_files(folder: Path, adapter: AdapterConfig) -> dict[str, Path]:
    """{name: file} of the adapter that training starts from. Raises ConfigError where it is not
    there or of another kind than `adapter`."""
    from llm_core.huggingface.adapter import CONFIG_FILE, WEIGHTS_FILE, check_adapter

    check_adapter(folder, adapter)
    return {f"adapter/{name}": folder / name for name in (CONFIG_FILE, WEIGHTS_FILE)}


def grown_vocab_size(there: int, num_ids: int) -> int:
    """Ids of a model of `there` ids once it has rows for `num_ids`: a multiple of MULTIPLE, unless
    it has them already."""
    return there if num_ids <= there else -(-num_ids // MULTIPLE) * MULTIPLE


def check_vocabulary(folder: Path, tokenizer: Path, num_ids: int, grows: bool = False) -> int:
    """The number of ids that the model in `folder` is trained with. Raises ConfigError where an id
    of the model means another piece, or the tokenizer has more ids and the model does not grow."""
    from llm_core.huggingface.export import read_config

    vocab_size = read_config(folder).vocab_size
    way_out = f"set tokenizer=import tokenizer.path={folder}"
    if num_ids > vocab_size and not grows:
        raise ConfigError(
            f"the tokenizer has {num_ids} ids, but the model in train.init_from ({folder}) has"
            f" only {vocab_size}; {way_out}, or train.init_vocab=grow if its first ids are those"
            " of the model"
        )
    theirs, ours = (_ids(place / TOKENIZER_FILE) for place in (folder, tokenizer))
    moved = sum(ours.get(piece) != number for piece, number in theirs.items())
    if ours and moved:
        raise ConfigError(
            f"{moved} of the {len(theirs)} pieces of the tokenizer have other ids in"
            f" train.init_from ({folder}), where the model learnt them; {way_out}"
        )
    return grown_vocab_size(vocab_size, num_ids)


def _setting(value: Any) -> str:
    """As an override says it."""
    if dataclasses.is_dataclass(value):
        return "{" + ",".join(f"{name}:{part}" for name, part in to_plain(value).items()) + "}"
    return "null" if value is None else str(value)


def _ids(file: Path) -> dict[str, int]:
    """Piece → id of a `tokenizer.json`, with its added tokens; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        found = read_json(file)
        vocabulary = found.get("model", {}).get("vocab", {})
        added = {token["content"]: token["id"] for token in found.get("added_tokens", ())}
    except (UnreadableJson, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"train.init_from: {file} is not a tokenizer ({error}); fetch it again"
        ) from error
    if not isinstance(vocabulary, dict):  # Unigram: pairs with scores
        vocabulary = {row[0]: number for number, row in enumerate(vocabulary)}
    return vocabulary | added

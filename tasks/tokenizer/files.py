"""Reads a tokenizer's folder as it is published: `tokenizer.json`, and the names of its special
tokens.

Publishers name end-of-text and padding in up to four files, as text, as an object with `content`,
or by id; any of them may be missing or null. The first file of `NAMING_FILES` that names a token is
followed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken

from llm_core.config import ConfigError
from llm_core.json_files import UnreadableJson, read_json
from tasks.tokenizer.charsmaps import damaged_charsmap
from tasks.tokenizer.patterns import check_tokenizer

CONFIG_FILE = "tokenizer_config.json"
NAMING_FILES = (CONFIG_FILE, "special_tokens_map.json", "generation_config.json", "config.json")
"""The first two name tokens, the others give ids."""

RARE = "\U0010f8ff 𐀀 q"
"""Characters that few vocabularies hold."""

UNREACHABLE_SCORE = -1000.0
"""Below the score of any spelling in single characters of a byte or special token's name."""

Role = Literal["eos_token", "pad_token"]


def read_tokenizer(
    file: Path, dropped: Iterable[str] = ("truncation", "padding")
) -> tokenizers.Tokenizer:
    """The tokenizer of a `tokenizer.json` without the parts named in `dropped`. Raises ConfigError
    where the file is not one."""
    # Dropped before it is read: a post-processor may name tokens that only it needs.
    described = read_object(file) | dict.fromkeys(dropped)
    try:
        check_tokenizer(described)
    except ValueError as error:
        raise ConfigError(f"path ({file}): {error}; give a tokenizer without it") from error
    if damage := damaged_charsmap(described.get("normalizer")):
        raise ConfigError(
            f"path ({file}) has a damaged precompiled_charsmap ({damage}); fetch or write the file"
            " again"
        )
    try:
        model = tokenizers.Tokenizer.from_str(json.dumps(described))
        # A model whose unknown token is missing from its vocabulary fails at the first character
        # that it does not know.
        model.encode(RARE)
        return model
    except BaseException as error:
        # The library's own errors are of the class Exception and no other; its panics, for some
        # damaged parts, are not an Exception.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ConfigError(
            f"path ({file}) is not a tokenizer that `tokenizers` reads ({error})"
        ) from error


def read_object(file: Path) -> dict[str, Any]:
    """A file that holds one JSON object. Raises ConfigError where it does not."""
    try:
        described = read_json(file)
    except UnreadableJson as error:
        raise ConfigError(
            f"path ({file}) is not JSON ({error}); give a {file.name} as it is published"
        ) from error
    if not isinstance(described, dict):
        raise ConfigError(
            f"path ({file}) is not a JSON object; give a {file.name} as it is published"
        )
    return described


def naming_files(folder: Path) -> dict[str, Path]:
    """{name: file} of those files of a folder that may name special tokens, in the order in which
    they are asked."""
    return {name: folder / name for name in NAMING_FILES if (folder / name).is_file()}


def named_token(
    named: Iterable[Mapping[str, Any]], role: Role, model: tokenizers.Tokenizer
) -> str | None:
    """The token that the first of these objects gives `role`; None where none does."""
    for described in named:
        value = described.get(role)
        name = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(name, str):
            return name
        ids = described.get(f"{role}_id")
        # Chat models list several ends; the first is that of a text.
        for id in ids if isinstance(ids, list) else [ids]:
            if type(id) is int and 0 <= id < 1 << 32 and (token := model.id_to_token(id)):
                return token
    return None


def special_tokens(model: tokenizers.Tokenizer) -> list[str]:
    return [token.content for token in model.get_added_tokens_decoder().values() if token.special]


def add_special(model: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    """Make these tokens special: text never spells them. Those that are new get the next ids."""
    known = special_tokens(model)
    new = [token for token in dict.fromkeys(tokens) if token not in known]
    model.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in new])


def hide_special(model: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, whose text never becomes a special token that is a piece of a unigram
    model: such a model finds pieces by their spelling (T5, XLM-R)."""
    if not isinstance(model.model, tokenizers.models.Unigram):
        return model
    described, special = json.loads(model.to_str()), set(special_tokens(model))
    vocabulary = described["model"]["vocab"]
    hidden = [(p, UNREACHABLE_SCORE if p in special else score) for p, score in vocabulary]
    if [tuple(entry) for entry in vocabulary] == hidden:
        return model
    described["model"]["vocab"] = hidden
    return tokenizers.Tokenizer.from_str(json.dumps(described))

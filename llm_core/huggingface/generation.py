"""Reads from a Hugging Face folder which ids end an answer.

`generation_config.json` comes before `config.json`, as in transformers; either may list several,
where a chat ends its turns otherwise than its documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_core.config import ConfigError
from llm_core.json_files import UnreadableJson, read_json

FILES = ("generation_config.json", "config.json")
MAX_IDS = 64


def read_eos_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Ids in the order of the file, none where no file names any.

    Raises ConfigError for a file that cannot be read or names ids that the model does not have.
    """
    for name in FILES:
        file = folder / name
        if not file.is_file():
            continue
        try:
            values = read_json(file)
        except UnreadableJson as error:
            raise ConfigError(f"{file} cannot be read as JSON ({error}); fetch it again") from error
        found = values.get("eos_token_id") if isinstance(values, dict) else None
        if found is not None:
            return _checked(file, found, vocab_size)
    return ()


def _checked(file: Path, found: Any, vocab_size: int) -> tuple[int, ...]:
    ids = found if isinstance(found, list) else [found]
    if len(ids) > MAX_IDS or not all(type(id) is int and 0 <= id < vocab_size for id in ids):
        raise ConfigError(
            f"{file}: eos_token_id ({str(found)[:80]}) must be an id from 0 to {vocab_size - 1}, or"
            f" a list of at most {MAX_IDS}; correct it"
        )
    return tuple(dict.fromkeys(ids))

"""Finds the chat template of a model folder, and the tokens that templates ask for by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_core.config import ConfigError
from tasks.tokenizer.files import CONFIG_FILE, NAMING_FILES, read_object
from tasks.tokenizer.importing import TEMPLATE_FILE

MAX_TEMPLATE_BYTES = 1 << 20


class NoTemplate(ConfigError):
    """The model has no chat template."""


def read_template(folder: Path, file: Path | None) -> str:
    """The template in `file`, else the one published with the model. Raises NoTemplate where there
    is neither."""
    source = _read_template(file) if file is not None else _published_template(folder)
    if source is None:
        raise NoTemplate(
            f"the model has no chat template ({CONFIG_FILE} or {TEMPLATE_FILE}); start the server"
            " with serve.chat_template=FILE, a Jinja file, or use /v1/completions"
        )
    return source


def _published_template(folder: Path) -> str | None:
    if (file := folder / TEMPLATE_FILE).is_file():
        return _read_template(file)
    if not (file := folder / CONFIG_FILE).is_file():
        return None
    found = read_object(file).get("chat_template")
    if isinstance(found, list):  # several, each with a name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _read_template(file: Path) -> str:
    if not file.is_file():
        raise ConfigError(f"chat_template ({file}) is not a file; name a Jinja template")
    if file.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ConfigError(
            f"chat_template ({file}) has more than {MAX_TEMPLATE_BYTES} bytes; name a template"
        )
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"chat_template ({file}) is not UTF-8; convert it") from error


def named_tokens(folder: Path) -> dict[str, str]:
    """`bos_token`, `eos_token` and the others that files name, as templates ask for them."""
    named: dict[str, str] = {}
    for name in NAMING_FILES[:2]:
        if not (folder / name).is_file():
            continue
        for role, value in read_object(folder / name).items():
            text = value.get("content") if isinstance(value, Mapping) else value
            if role.endswith("_token") and isinstance(text, str):
                named.setdefault(role, text)
    return named

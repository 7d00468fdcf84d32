"""Imports a tokenizer that was trained elsewhere, and checks it against our rules.

Reads a Hugging Face `tokenizer.json`, a sentencepiece `.model`, or a folder that holds one of them.
Ids stay what they are. The end of text and the padding come from the config, else from the files
beside it (`tasks.tokenizer.files`), else from the `.model` itself; a tokenizer without padding pads
with its end of text. Truncation, padding and templates that add tokens are taken out: a text's ids
are its own, and the model trained here starts from end-of-text.

A `.model` is rewritten as `tokenizer.json` (`tasks.tokenizer.sentencepieces`), which can say what
it says only where it leaves text as it is; one that normalises, adds a leading space or removes
spaces is refused. Every other loss, also of a `tokenizer.json`, shows when the stage measures
whether documents come back.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from llm_core.config import ConfigError
from tasks.tokenizer.encoder import END_OF_TEXT, PAD, TOKENIZER_FILE
from tasks.tokenizer.files import (
    CONFIG_FILE,
    NAMING_FILES,
    add_special,
    named_token,
    naming_files,
    read_object,
    read_tokenizer,
    special_tokens,
)
from tasks.tokenizer.sentencepieces import from_sentencepiece

MODEL_FILE = "tokenizer.model"
TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer with the names of its special tokens, and the sentencepiece file it was read
    from."""

    model: Tokenizer
    eos_token: str
    pad_token: str
    chat_template: str | None
    model_file: bytes | None


def imported_files(path: Path) -> dict[str, Path]:
    """{name: file} of everything an import reads. Raises ConfigError where there is no
    tokenizer."""
    file = path
    if path.is_dir():
        found = [path / name for name in (TOKENIZER_FILE, MODEL_FILE) if (path / name).exists()]
        if not found:
            raise ConfigError(
                f"path ({path}) holds neither {TOKENIZER_FILE} nor {MODEL_FILE}; name the file"
                " itself"
            )
        file = found[0]
    elif not path.exists():
        raise ConfigError(
            f"path ({path}) does not exist; name a {TOKENIZER_FILE}, a .model file or a folder"
            " that holds one"
        )
    if file.suffix not in (".json", ".model"):
        raise ConfigError(
            f"path ({path}) must end in .json or .model; name a file of tokenizers or sentencepiece"
        )
    template = file.with_name(TEMPLATE_FILE)
    beside = naming_files(file.parent) | ({"chat_template": template} if template.exists() else {})
    return {file.suffix.removeprefix("."): file} | beside


def import_tokenizer(path: Path, eos_token: str | None, pad_token: str | None) -> ImportedTokenizer:
    """Read a tokenizer. Raises ConfigError where the file is not one, changes text, or names no end
    of text."""
    files = imported_files(path)
    named = [read_object(files[name]) for name in NAMING_FILES if name in files]
    template = named[0].get("chat_template") if CONFIG_FILE in files else None
    if "chat_template" in files:
        template = files["chat_template"].read_text("utf-8")
    model_file, own_eos, own_pad = None, None, None
    if "json" in files:
        model = read_tokenizer(files["json"], ("post_processor", "truncation", "padding"))
        own_eos = END_OF_TEXT
    else:
        model_file = files["model"].read_bytes()
        model, own_eos, own_pad = _read_model(files["model"], model_file)
    eos = eos_token or named_token(named, "eos_token", model) or own_eos
    pad = pad_token or named_token(named, "pad_token", model) or own_pad
    if pad is None:
        pad = PAD if model.token_to_id(PAD) is not None else eos
    for setting, token in (("eos_token", eos), ("pad_token", pad)):
        if token is None or model.token_to_id(token) is None:
            known = ", ".join(special_tokens(model)[:8]) or "its tokens"
            raise ConfigError(
                f"{setting} ({token or 'null'}) is not in the vocabulary of {path.name}; set"
                f" tokenizer.{setting} to one of {known}"
            )
    assert eos is not None and pad is not None
    add_special(model, (eos, pad))
    chat_template = template if isinstance(template, str) else None
    return ImportedTokenizer(model, eos, pad, chat_template, model_file)


def _read_model(file: Path, content: bytes) -> tuple[Tokenizer, str | None, str | None]:
    """(tokenizer, end of text, padding) of a sentencepiece file."""
    from google.protobuf.message import DecodeError

    proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    described = proto.ModelProto()
    try:
        described.ParseFromString(content)
    except DecodeError as error:
        raise ConfigError(f"path ({file}) is not a sentencepiece model ({error})") from error
    rules, trainer = described.normalizer_spec, described.trainer_spec
    changes = {
        f"normalises text ({rules.name})": bool(rules.precompiled_charsmap),
        "adds a leading space": rules.add_dummy_prefix,
        "removes spaces": rules.remove_extra_whitespaces,
        "writes spaces behind words": trainer.treat_whitespace_as_suffix,
        "has no byte pieces for rare characters": not trainer.byte_fallback,
    }
    if found := [change for change, holds in changes.items() if holds]:
        raise ConfigError(
            f"path ({file}) {', '.join(found)}, so decoding would not give the text back; import a"
            " model that keeps text as it is"
        )
    methods = {proto.TrainerSpec.UNIGRAM: "unigram", proto.TrainerSpec.BPE: "bpe"}
    if trainer.model_type not in methods:
        raise ConfigError(
            f"path ({file}) is a word or character model; give one of type"
            f" {' or '.join(methods.values())}"
        )
    tokenizer = from_sentencepiece(content, methods[trainer.model_type])  # type: ignore[arg-type]
    user_defined = proto.ModelProto.SentencePiece.USER_DEFINED
    own = [piece.piece for piece in described.pieces if piece.type == user_defined]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in own])
    pieces = {id: piece.piece for id, piece in enumerate(described.pieces)}
    # An id of -1 says that the model has no such piece.
    return tokenizer, pieces.get(trainer.eos_id), pieces.get(trainer.pad_id)

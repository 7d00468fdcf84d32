"""How does a tokenizer that somebody else trained become ours? By reading its file, and by holding it to our rules.

Reads a Hugging Face `tokenizer.json`, a sentencepiece `.model`, or a folder that holds one of them. Ids stay what they are. The
end of text and the padding come from the config, else from `tokenizer_config.json` beside the file, else from the `.model`
itself; a tokenizer without padding pads with its end of text. Truncation, padding and templates that add tokens are taken out:
a text's ids are its own.

A `.model` is rewritten as `tokenizer.json` (`tasks.sentencepieces`), which can say what it says only where it leaves text as it
is; one that normalises, adds a leading space or removes spaces is refused. Every other loss, also of a `tokenizer.json`, shows
when the stage measures whether documents come back.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from llm_core.config import ConfigError
from tasks.charsmaps import damaged_charsmap
from tasks.encoder import CONFIG_FILE, END_OF_TEXT, PAD, TOKENIZER_FILE
from tasks.sentencepieces import from_sentencepiece

MODEL_FILE = "tokenizer.model"
TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer with the names of its special tokens, and the sentencepiece file it was read from."""

    model: Tokenizer
    eos_token: str
    pad_token: str
    chat_template: str | None
    model_file: bytes | None


def imported_files(path: Path) -> dict[str, Path]:
    """{name: file} of everything an import reads. Raises ConfigError where there is no tokenizer."""
    file = path
    if path.is_dir():
        found = [path / name for name in (TOKENIZER_FILE, MODEL_FILE) if (path / name).exists()]
        if not found:
            raise ConfigError(f"path ({path}) holds neither {TOKENIZER_FILE} nor {MODEL_FILE}; name the file itself")
        file = found[0]
    elif not path.exists():
        raise ConfigError(f"path ({path}) is not there; name a {TOKENIZER_FILE}, a .model file or a folder that holds one")
    if file.suffix not in (".json", ".model"):
        raise ConfigError(f"path ({path}) must end in .json or .model; those are what tokenizers and sentencepiece write")
    beside = {"config": file.with_name(CONFIG_FILE), "chat_template": file.with_name(TEMPLATE_FILE)}
    return {file.suffix.removeprefix("."): file} | {name: other for name, other in beside.items() if other.exists()}


def import_tokenizer(path: Path, eos_token: str | None, pad_token: str | None) -> ImportedTokenizer:
    """Read a tokenizer. Raises ConfigError where the file is none, changes text, or names no end of text."""
    files = imported_files(path)
    named = _read_object(files["config"], CONFIG_FILE) if "config" in files else {}
    template = files["chat_template"].read_text("utf-8") if "chat_template" in files else named.get("chat_template")
    model_file = None
    if "json" in files:
        model = _read_json(files["json"])
        eos: str | None = eos_token or _name(named, "eos_token") or END_OF_TEXT
        pad = pad_token or _name(named, "pad_token")
    else:
        model_file = files["model"].read_bytes()
        model, own_eos, own_pad = _read_model(files["model"], model_file)
        eos, pad = eos_token or _name(named, "eos_token") or own_eos, pad_token or own_pad
    if pad is None:
        pad = PAD if model.token_to_id(PAD) is not None else eos
    for setting, token in (("eos_token", eos), ("pad_token", pad)):
        if token is None or model.token_to_id(token) is None:
            special = [t.content for t in model.get_added_tokens_decoder().values() if t.special]
            raise ConfigError(
                f"{setting} ({token}) is not in the vocabulary of {path.name}; set tokenizer.{setting} to one of "
                f"{', '.join(special[:8]) or 'its tokens'}"
            )
    assert eos is not None and pad is not None
    # Already in the vocabulary, so this only keeps text from spelling them.
    model.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in dict.fromkeys((eos, pad))])
    return ImportedTokenizer(model, eos, pad, template if isinstance(template, str) else None, model_file)


def _read_json(file: Path) -> Tokenizer:
    # Taken out before it is read: a template may name tokens that only it needs.
    described = _read_object(file, TOKENIZER_FILE) | {"post_processor": None, "truncation": None, "padding": None}
    if damage := damaged_charsmap(described.get("normalizer")):
        raise ConfigError(f"path ({file}) has a damaged precompiled_charsmap ({damage}); fetch or write the file again")
    try:
        return Tokenizer.from_str(json.dumps(described))
    except BaseException as error:
        # The library's own errors are of the class Exception and no other; its panics, for some damaged parts, are no Exception.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ConfigError(f"path ({file}) is not a tokenizer that `tokenizers` reads ({error})") from error


def _read_object(file: Path, kind: str) -> dict[str, Any]:
    try:
        described = json.loads(file.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"path ({file}) is not JSON ({error}); name a {kind}") from error
    if not isinstance(described, dict):
        raise ConfigError(f"path ({file}) holds a JSON {type(described).__name__} where an object must be; name a {kind}")
    return described


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
        raise ConfigError(f"path ({file}) {', '.join(found)}, so text would not come back; import one that keeps text as it is")
    methods = {proto.TrainerSpec.UNIGRAM: "unigram", proto.TrainerSpec.BPE: "bpe"}
    if trainer.model_type not in methods:
        raise ConfigError(f"path ({file}) is a word or character model; known: {', '.join(methods.values())}")
    tokenizer = from_sentencepiece(content, methods[trainer.model_type])  # type: ignore[arg-type]
    user_defined = [p.piece for p in described.pieces if p.type == proto.ModelProto.SentencePiece.USER_DEFINED]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in user_defined])
    pieces = {id: described.pieces[id].piece for id in (trainer.eos_id, trainer.pad_id) if 0 <= id < len(described.pieces)}
    return tokenizer, pieces.get(trainer.eos_id), pieces.get(trainer.pad_id)


def _name(config: Mapping[str, Any], key: str) -> str | None:
    """A token in `tokenizer_config.json`, written as text or as an object."""
    value = config.get(key)
    name = value.get("content") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else None

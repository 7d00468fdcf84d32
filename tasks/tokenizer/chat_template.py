"""Turns the messages of a chat into the ids that a model was trained to read, by its template.

Templates are Jinja in a sandbox, with the extras that Hugging Face's templates use. Ids equal those
of transformers' `apply_chat_template`, but for two rules. Text of messages never becomes a control
token, whatever it spells: private characters stand for such spellings while the template runs,
then control tokens of the template get names that nobody can guess, and only those are read as
tokens. And a chat begins with the model's start tokens exactly once, also where the template leaves
them out.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import tokenizers
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken

from llm_core.config import ConfigError
from tasks.tokenizer.encoder import TOKENIZER_FILE, Tokenizer
from tasks.tokenizer.files import (
    CONFIG_FILE,
    NAMING_FILES,
    add_special,
    read_object,
    read_tokenizer,
)
from tasks.tokenizer.importing import TEMPLATE_FILE

Message = Mapping[str, str]
"""`role` and `content`."""

SIGNS = [chr(code) for code in range(0x10F000, 0x10F100)]
"""Private use: signs that no template and hardly a text holds."""

FIRST_SPELLING = 0x100000
"""Private use as well: with a sign before it, the n-th character from here stands for the spelling
of the n-th control token."""

MAX_TEMPLATE_BYTES = 1 << 20


class NoTemplate(ConfigError):
    """The model has no chat template."""


class ChatTemplate:
    """The template of one model. `encode` may be called from one thread at a time."""

    def __init__(self, source: str, folder: Path, tokenizer: Tokenizer) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template of {folder} is not valid Jinja ({error}); give another with"
                " serve.chat_template=FILE"
            ) from error
        self._start_ids = list(tokenizer.start_ids)
        model = read_tokenizer(folder / TOKENIZER_FILE)
        names = _named_tokens(folder)
        names.setdefault("eos_token", model.id_to_token(tokenizer.eos_id) or "")
        add_special(model, [token for token in names.values() if token])
        self._names, self._model = names, model
        controls = {
            token.content: (id, token)
            for id, token in model.get_added_tokens_decoder().items()
            if token.special and token.content
        }
        self._spelled = sorted(controls, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, self._spelled)) or r"(?!)")
        model.encode_special_tokens = True  # their spelling is text
        secret = secrets.token_hex(16)
        self._secret_names = {name: f"[{secret} {n}]" for n, name in enumerate(self._spelled)}
        # Ends what is before it and is not a token itself.
        self._nothing = f"[{secret}]"

        model.add_tokens(
            [
                *(self._named_like(controls[name][1]) for name in self._spelled),
                AddedToken(self._nothing, normalized=False),
            ]
        )
        self._control_ids = {
            model.token_to_id(secret_name): controls[name][0]
            for name, secret_name in self._secret_names.items()
        }
        # Pieces of unigram models are found by their spelling, control tokens among them.
        finds_controls = isinstance(model.model, tokenizers.models.Unigram)
        self._cut = self._nothing if finds_controls else ""

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a chat, up to where the answer begins. Raises ConfigError where the template
        refuses the messages."""
        signs = _unused_signs(messages)
        text = self._render(
            [
                {**message, "content": self._broken(message["content"], signs)}
                for message in messages
            ]
        )
        text = self._control.sub(lambda found: self._secret_names[found[0]], text)
        found = self._model.encode(self._restored(text, signs), add_special_tokens=False).ids
        nothing = self._model.token_to_id(self._nothing)
        ids = [self._control_ids.get(id, id) for id in found if id != nothing]
        start = self._start_ids
        return ids if ids[: len(start)] == start else start + ids

    def _named_like(self, control: AddedToken) -> AddedToken:
        return AddedToken(
            self._secret_names[control.content],
            normalized=False,
            lstrip=control.lstrip,
            rstrip=control.rstrip,
            single_word=control.single_word,
        )

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, **self._names
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ConfigError(
                f"the model's chat template refuses these messages ({error}); send them in the form"
                " that it expects"
            ) from error

    def _broken(self, text: str, signs: tuple[str, str]) -> str:
        """`text` in which no control token is spelled, nor completed by what a template puts around
        it."""
        border, spelling = signs
        numbers = {control: number for number, control in enumerate(self._spelled)}
        text = self._control.sub(
            lambda found: spelling + chr(FIRST_SPELLING + numbers[found[0]]), text
        )
        # Inside the outer spaces, which templates take off.
        core = text.strip()
        if not core:
            return text
        before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        parts = [(control[:n], control[n:]) for control in numbers for n in range(1, len(control))]
        within = any(core in control for control in numbers)
        if within or any(core.startswith(end) for _, end in parts):
            before += border
        if within or any(core.endswith(begin) for begin, _ in parts):
            after = border + after
        return before + core + after

    def _restored(self, text: str, signs: tuple[str, str]) -> str:
        """`text` with what the private signs stand for."""
        border, spelling = signs
        names = {
            chr(FIRST_SPELLING + number): control[0] + self._cut + control[1:]
            for number, control in enumerate(self._spelled)
        }
        first, *rest = text.replace(border, self._cut).split(spelling)
        return first + "".join(names.get(part[:1], part[:1]) + part[1:] for part in rest)


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, with which templates mark answers for training: its body, here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def load_chat_template(folder: Path, tokenizer: Tokenizer, file: Path | None) -> ChatTemplate:
    """The template in `file`, else the one published with the model. Raises NoTemplate where there
    is neither."""
    source = _read_template(file) if file is not None else _published_template(folder)
    if source is None:
        raise NoTemplate(
            f"the model has no chat template ({CONFIG_FILE} or {TEMPLATE_FILE}); start the server"
            " with serve.chat_template=FILE, a Jinja file, or use /v1/completions"
        )
    return ChatTemplate(source, folder, tokenizer)


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


def _unused_signs(messages: Sequence[Message]) -> tuple[str, str]:
    used = {character for message in messages for character in message["content"]}
    unused = [sign for sign in SIGNS if sign not in used]
    if len(unused) < 2:
        raise ConfigError(
            f"the messages use too many private characters from {SIGNS[0]!r} on; remove some"
        )
    return unused[0], unused[1]


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


def _named_tokens(folder: Path) -> dict[str, str]:
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


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)

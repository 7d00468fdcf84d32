"""Turns the messages of a chat into ids by the model's template, for serving and for training.

Templates are Jinja in a sandbox, with the extras that Hugging Face's templates use. Ids equal those
of transformers' `apply_chat_template`, but for two rules. Text of messages never becomes a control
token, whatever it spells: private characters stand for such spellings while the template runs,
then control tokens of the template get names that nobody can guess, and only those are read as
tokens. And a chat begins with the model's start tokens exactly once, also where the template leaves
them out.

For training, `encode_answers` also tells which ids are the assistant's. A template that marks them
with `{% generation %}` is taken at its word. Else an answer begins where the prompt before it ends,
and ends with its last control token, the one that ends the turn. A token belongs to an answer where
it begins in one.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.ext
import numpy as np
import tokenizers
from jinja2.nodes import Name, Node, Output
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken

from llm_core.config import ConfigError
from tasks.tokenizer.encoder import TOKENIZER_FILE, Tokenizer
from tasks.tokenizer.files import add_special, read_tokenizer
from tasks.tokenizer.template_files import named_tokens, read_template

Message = Mapping[str, str]
"""`role` and `content`."""

SIGNS = [chr(code) for code in range(0x10F000, 0x10F100)]
"""Private use: signs that no template and hardly a text holds."""

FIRST_SPELLING = 0x100000
"""Private use as well: with a sign before it, the n-th character from here stands for the spelling
of the n-th control token."""

ASSISTANT = "assistant"
MARKS_ANSWERS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
BEGINS, ENDS = "__answer_begins", "__answer_ends"
"""Variables that are written around the body of `{% generation %}`."""

TRAINING_DAY = datetime.datetime(2024, 7, 26)
"""What templates that write the date write in training, so that shards do not depend on it."""


class Signs(NamedTuple):
    """Private characters that no message of a chat has."""

    border: str
    spelling: str
    begins: str
    ends: str


class Answers(NamedTuple):
    """The ids of a chat (int64), and which of them are the assistant's (bool, as many)."""

    ids: np.ndarray
    is_answer: np.ndarray
    text: str
    """What they stand for, without control tokens."""


class ChatTemplate:
    """The template of one model. `encode` may be called from one thread at a time."""

    def __init__(
        self,
        source: str,
        folder: Path,
        tokenizer: Tokenizer,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """now: the time that templates may write."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template of {folder} is not valid Jinja ({error}); give another with"
                " serve.chat_template=FILE"
            ) from error
        self._marks_answers = MARKS_ANSWERS.search(source) is not None
        self._start_ids = list(tokenizer.start_ids)
        model = read_tokenizer(folder / TOKENIZER_FILE)
        names = named_tokens(folder)
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
        self._secret_name = re.compile(re.escape(f"[{secret} ") + r"\d+\]")
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
        return self._tokens(self._shown(messages, signs, True), signs).ids.tolist()

    def encode_answers(self, messages: Sequence[Message]) -> Answers:
        """The ids of a whole chat. Raises ConfigError where the template refuses it, or changes
        what comes before an answer."""
        signs = _unused_signs(messages)
        whole = self._shown(messages, signs, False)
        if not self._marks_answers:
            spans = [
                self._find_answer(messages, number, whole, signs)
                for number, message in enumerate(messages)
                if message["role"] == ASSISTANT
            ]
            for start, end in reversed(spans):
                answer = signs.begins + whole[start:end] + signs.ends
                whole = whole[:start] + answer + whole[end:]
        return self._tokens(whole, signs)

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self._control_ids.values())

    def _find_answer(
        self, messages: Sequence[Message], number: int, whole: str, signs: Signs
    ) -> tuple[int, int]:
        """Where an answer begins and ends in the whole chat."""
        before = self._shown(messages[:number], signs, False)
        if not whole.startswith(before):
            raise ConfigError(
                f"the chat template changes what comes before message {number} once more follow;"
                " mark the answers in it with {% generation %} … {% endgeneration %}"
            )
        # Some prompts begin the answer, with a tag for thoughts, which chats need not have.
        prompt = self._shown(messages[:number], signs, True)
        pairs = zip(whole, prompt, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        controls = list(self._secret_name.finditer(whole, len(before)))
        within = (found.start() for found in controls if found.start() < same < found.end())
        start = max(len(before), next(within, same))
        until = self._shown(messages[: number + 1], signs, False)
        ends = [found.end() for found in controls if found.start() >= start]
        if whole.startswith(until):
            own = [end for end in ends if end <= len(until)]
            end = own[-1] if own and not whole[own[-1] : len(until)].strip() else len(until)
        elif ends:
            end = ends[0]
        else:
            raise ConfigError(
                f"the chat template does not say where message {number} ends; mark the answers in"
                " it with {% generation %} … {% endgeneration %}"
            )
        return start, end

    def _shown(self, messages: Sequence[Message], signs: Signs, prompts: bool) -> str:
        """The chat as text, in which secret names stand for the template's control tokens and
        private signs for what messages spell. prompts: up to where an answer begins."""
        broken = [
            {**message, "content": self._broken(message["content"], signs)} for message in messages
        ]
        text = self._render(broken, signs, prompts)
        return self._control.sub(lambda found: self._secret_names[found[0]], text)

    def _tokens(self, shown: str, signs: Signs) -> Answers:
        parts = re.split(f"[{signs.begins}{signs.ends}]", self._restored(shown, signs))
        found = self._model.encode("".join(parts), add_special_tokens=False)
        # Every second part is an answer.
        borders = np.cumsum([len(part) for part in parts])
        begins = np.array([begin for begin, _ in found.offsets], np.int64)
        is_answer = np.searchsorted(borders, begins, "right") % 2 == 1
        kept = np.array(found.ids, np.int64) != self._model.token_to_id(self._nothing)
        ids = np.array([self._control_ids.get(id, id) for id in found.ids], np.int64)[kept]
        is_answer = is_answer[kept]
        start = np.array(self._start_ids, np.int64)
        if not np.array_equal(ids[: len(start)], start):
            ids = np.concatenate([start, ids])
            is_answer = np.concatenate([np.zeros(len(start), bool), is_answer])
        text = self._secret_name.sub("", "".join(parts)).replace(self._nothing, "")
        return Answers(ids, is_answer, text)

    def _named_like(self, control: AddedToken) -> AddedToken:
        return AddedToken(
            self._secret_names[control.content],
            normalized=False,
            lstrip=control.lstrip,
            rstrip=control.rstrip,
            single_word=control.single_word,
        )

    def _render(self, messages: Sequence[Message], signs: Signs, prompts: bool) -> str:
        marks = {BEGINS: "", ENDS: ""} if prompts else {BEGINS: signs.begins, ENDS: signs.ends}
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=prompts,
                tools=None,
                **marks,
                **self._names,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ConfigError(
                f"the model's chat template refuses these messages ({error}); send them in the form"
                " that it expects"
            ) from error

    def _broken(self, text: str, signs: Signs) -> str:
        """`text` in which no control token is spelled, nor completed by what a template puts around
        it."""
        border, spelling = signs.border, signs.spelling
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

    def _restored(self, text: str, signs: Signs) -> str:
        """`text` with what the private signs stand for."""
        names = {
            chr(FIRST_SPELLING + number): control[0] + self._cut + control[1:]
            for number, control in enumerate(self._spelled)
        }
        first, *rest = text.replace(signs.border, self._cut).split(signs.spelling)
        return first + "".join(names.get(part[:1], part[:1]) + part[1:] for part in rest)


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, with which templates mark answers: its body, between two variables."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        before, after = (Output([Name(name, "load")], lineno=line) for name in (BEGINS, ENDS))
        return [before, *body, after]


def load_chat_template(
    folder: Path,
    tokenizer: Tokenizer,
    file: Path | None = None,
    now: Callable[[], datetime.datetime] = datetime.datetime.now,
) -> ChatTemplate:
    """The template in `file`, else the one published with the model. Raises NoTemplate where there
    is neither."""
    return ChatTemplate(read_template(folder, file), folder, tokenizer, now)


def _unused_signs(messages: Sequence[Message]) -> Signs:
    used = {character for message in messages for character in message["content"]}
    unused = [sign for sign in SIGNS if sign not in used]
    if len(unused) < len(Signs._fields):
        raise ConfigError(
            f"the messages use too many private characters from {SIGNS[0]!r} on; remove some"
        )
    return Signs(*unused[: len(Signs._fields)])


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

"""Defines what clients may ask, in OpenAI's names, and checks it strictly.

`top_k`, `min_p`, `repetition_penalty`, `min_tokens` and `stop_token_ids` are additions that other
servers have too. What this server cannot do is refused by name, never ignored; `user`, `store` and
`metadata`, which are notes for OpenAI, are taken and not kept.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from llm_core.config import ConfigError
from llm_core.infer.choice.sampling import SamplingParams
from tasks.serving.failures import ApiError

MAX_STOPS, MAX_STOP_CHARS = 16, 1000
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024
MAX_ID_DIGITS = 9
MAX_DEPTH = 64
"""Levels of lists and objects in a body."""
MAX_NAMES, MAX_INNER = 2048, 16_384
"""Names in one object of a body; lists and objects in all."""

Item = TypeVar("Item")

Stop = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
Id = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
# An error for each of a million items would take longer to list than the items to read.
Several = Annotated[list[Item], Field(fail_fast=True)]


class Part(BaseModel):
    """What every object in a request obeys."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class StreamOptions(Part):
    include_usage: bool = False


class SamplingRequest(Part):
    """What both kinds of requests have."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)] | None = None
    min_tokens: int | None = Field(None, ge=0)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[Id], Field(max_length=64)] | None = None
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def sampling(self, defaults: SamplingParams, vocab_size: int) -> SamplingParams:
        """The request's parameters, and the server's for those that it leaves open, but the seed:
        each request without one gets another. Raises ApiError."""
        seed = secrets.randbits(63) if self.seed is None else self.seed & (2**63 - 1)
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "min_new_tokens": self.min_tokens,
            "stop_ids": None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            "logit_bias": self._biases(vocab_size) or None,
        }
        try:
            named = {name: value for name, value in given.items() if value is not None}
            return dataclasses.replace(defaults, seed=seed, **named)
        except ConfigError as error:
            raise ApiError(400, str(error)) from error

    def _biases(self, vocab_size: int) -> dict[int, float]:
        biases = {}
        for name, bias in (self.logit_bias or {}).items():
            is_id = name.isascii() and name.isdigit() and len(name) <= MAX_ID_DIGITS
            if not (is_id and int(name) < vocab_size):
                raise ApiError(
                    400,
                    f"logit_bias ({name[:40]!r}) must map token ids from 0 to {vocab_size - 1}",
                    "logit_bias",
                )
            biases[int(name)] = bias
        return biases


class CompletionRequest(SamplingRequest):
    """A body of /v1/completions."""

    prompt: str | Several[str] | Several[Id] | Several[Several[Id]]
    max_tokens: int | None = Field(None, ge=0)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: int | None = None
    suffix: None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each prompt, as text or as ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise ApiError(400, "prompt is an empty list; give a text or ids", "prompt")
        if isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return self.prompt  # type: ignore[return-value]


class TextPart(Part):
    type: Literal["text"]
    text: str


class ChatMessage(Part):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Several[TextPart]
    name: None = None

    @property
    def plain(self) -> dict[str, str]:
        """Role and text, as templates know them."""
        is_list = isinstance(self.content, list)
        text = "".join(part.text for part in self.content) if is_list else self.content  # type: ignore[union-attr]
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text}  # type: ignore[dict-item]


class JsonSchema(Part):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(SamplingRequest):
    """A body of /v1/chat/completions."""

    messages: Annotated[Several[ChatMessage], Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The JSON schema that answers follow; None for text. Raises ApiError."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        if self.min_tokens:
            raise ApiError(
                400,
                "min_tokens and response_format exclude each other: JSON ends where its schema"
                " does; leave out min_tokens",
                "min_tokens",
            )
        if form.type == "json_object":
            return {"type": "object"}
        if form.json_schema is None:
            raise ApiError(400, "response_format has no json_schema; add it", "response_format")
        return form.json_schema.schema_

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer; None where the request leaves it open."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def read_body(body: bytes) -> Any:
    """The JSON of a body. Raises ApiError where it is not JSON, nested too deep, or names more than
    any request does."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON ({error}); send one object") from error
    level, num_inner = [value], 0
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return value
        num_inner += len(level)
        if num_inner > MAX_INNER:
            raise ApiError(400, f"the body has more than {MAX_INNER} lists and objects; send fewer")
    raise ApiError(400, f"the body is nested deeper than {MAX_DEPTH} levels; send a flatter one")


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        if len(value) > MAX_NAMES:
            raise ApiError(
                400, f"an object of the body has {len(value)} names; {MAX_NAMES} is the most"
            )
        value = value.values()
    elif not isinstance(value, list):
        return []
    return [one for one in value if isinstance(one, (dict, list))]

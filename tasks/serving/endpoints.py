"""Answers what clients ask: `/v1/models`, `/v1/completions`, `/v1/chat/completions`, `/health`,
`/metrics` and the page."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from llm_core.config import ConfigError
from llm_core.infer.choice.sampling import SamplingParams
from tasks.evaluation.generate import begin
from tasks.serving.answers import Answer
from tasks.serving.failures import ApiError, invalid
from tasks.serving.json_answers import JsonAnswers
from tasks.serving.metrics import Metrics
from tasks.serving.replies import Replies
from tasks.serving.requests import (
    ChatRequest,
    CompletionRequest,
    Part,
    SamplingRequest,
    read_body,
)
from tasks.serving.streaming import JobReply
from tasks.serving.worker import Job, Worker
from tasks.tokenizer.chat_template import ChatTemplate
from tasks.tokenizer.encoder import Tokenizer
from tasks.tokenizer.template_files import NoTemplate
from tasks.tokenizer.text_stream import TextStream

BODY_TIMEOUT_S = 30.0
DEFAULT_MAX_TOKENS = 16
"""Of a completion, as OpenAI has it."""

PAGE_FILES = {
    "/": ("chat.html", "text/html"),
    "/chat.css": ("chat.css", "text/css"),
    "/chat.js": ("chat.js", "text/javascript"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

DIRECT_CHARS = 5_000
"""Shorter texts are encoded before a thread would have begun."""
MESSAGE_CHARS = 32
"""What a message costs a template besides its text, in characters to encode."""

Asked = TypeVar("Asked", bound=Part)
Ids = TypeVar("Ids")


@dataclass
class Service:
    """One served model; its methods are endpoints."""

    name: str
    created: int
    tokenizer: Tokenizer
    vocab_size: int
    max_seq_len: int
    chat_template: ChatTemplate | NoTemplate
    worker: Worker
    metrics: Metrics
    max_choices: int
    json_answers: JsonAnswers
    defaults: SamplingParams
    """How tokens are chosen where a request does not say."""
    default_stops: Sequence[str]
    """Where answers end then."""
    _encoding: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def health(self, request: Request) -> Response:
        if self.worker.error is not None:
            return JSONResponse({"status": "the engine has stopped"}, 503)
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.shown(), media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        name, kind = PAGE_FILES[request.url.path]
        content = resources.files("tasks.serving").joinpath("page", name).read_bytes()
        return Response(content, headers=PAGE_HEADERS, media_type=kind)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._described())

    async def completions(self, request: Request) -> ASGIApp:
        asked = await read_request(request, CompletionRequest)
        self._check_model(asked.model)
        if asked.best_of not in (None, asked.n):
            raise ApiError(
                400, f"best_of ({asked.best_of}) must be n ({asked.n}); leave it out", "best_of"
            )
        texts = asked.prompts
        self._check_choices(len(texts), asked.n)
        self._check_chars(max(map(len, texts)))
        num_chars = sum(map(len, texts))
        prompts = await self._encoded(lambda: list(map(self._completion_ids, texts)), num_chars)
        limit = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
        limits = [self._checked_limit(prompt, limit) for prompt in prompts]
        echoes = [self._text(prompt) for prompt in asked.prompts] if asked.echo else []
        job = self._job(asked, prompts, limits, asked.logprobs, [len(text) for text in echoes])
        if asked.echo:
            job.prompt_logprobs = asked.logprobs
        return self._reply(asked, job, "completion", asked.logprobs, echoes)

    async def chat(self, request: Request) -> ASGIApp:
        asked = await read_request(request, ChatRequest)
        self._check_model(asked.model)
        if isinstance(self.chat_template, NoTemplate):
            raise ApiError(400, str(self.chat_template), "messages", "no_chat_template")
        if asked.top_logprobs and not asked.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true; add it", "top_logprobs")
        template, messages = self.chat_template, [message.plain for message in asked.messages]
        self._check_choices(1, asked.n)
        num_chars = sum(len(message["content"]) for message in messages)
        self._check_chars(num_chars)
        num_chars += MESSAGE_CHARS * len(messages)
        try:
            prompt = await self._encoded(lambda: template.encode(messages), num_chars)
        except ConfigError as error:
            raise ApiError(400, str(error), "messages") from error
        limit = self._checked_limit(prompt, asked.limit)
        logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        job = self._job(asked, [prompt], [limit], logprobs)
        if (schema := asked.schema_of_answer) is not None:
            # One at a time, as prompts are encoded: both use the tokenizer.
            async with self._encoding:
                job.allowed = await asyncio.to_thread(self.json_answers.allowed, schema)
            # A schema may allow nothing but the end.
            job.params = dataclasses.replace(job.params, min_new_tokens=0)
        return self._reply(asked, job, "chat", logprobs)

    def _described(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "textmill",
            "max_model_len": self.max_seq_len,
            "has_chat_template": not isinstance(self.chat_template, NoTemplate),
        }

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"model ({name[:80]!r}) is not served here; ask for {self.name!r}",
                "model",
                "model_not_found",
            )

    async def _encoded(self, encode: Callable[[], Ids], num_chars: int) -> Ids:
        """What `encode` gives. Long texts are encoded in a thread, so that others need not wait;
        one at a time, as tokenizers remember words."""
        async with self._encoding:
            return encode() if num_chars < DIRECT_CHARS else await asyncio.to_thread(encode)

    def _check_chars(self, num_chars: int) -> None:
        """Refuse a prompt that is too long before it is encoded."""
        if num_chars > self.max_seq_len * self._longest_token:
            raise ApiError(
                400,
                f"the prompt has {num_chars} characters, which exceeds {self.max_seq_len} tokens;"
                " shorten it",
                code="context_length_exceeded",
            )

    def _check_choices(self, num_prompts: int, n: int) -> None:
        """Refuse what asks for too many answers, before any prompt of it is encoded."""
        if (count := num_prompts * n) > self.max_choices:
            raise ApiError(
                400,
                f"{num_prompts} prompts with n={n} make {count} answers; the server allows"
                f" {self.max_choices} per request (serve.max_choices); ask for fewer",
                "n",
            )

    @cached_property
    def _longest_token(self) -> int:
        return int(self.tokenizer.bytes_per_token.max())

    def _completion_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Text begins as the model's texts do; ids are taken as they are."""
        if isinstance(prompt, str):
            return begin(self.tokenizer, self.tokenizer.encode(prompt).tolist())
        if not prompt:
            raise ApiError(400, "prompt has an empty list; give at least one id", "prompt")
        if (largest := max(prompt)) >= self.vocab_size:
            raise ApiError(
                400, f"prompt has id {largest}; ids go from 0 to {self.vocab_size - 1}", "prompt"
            )
        return list(prompt)

    def _text(self, prompt: str | Sequence[int]) -> str:
        return prompt if isinstance(prompt, str) else TextStream(self.tokenizer).add(prompt)

    def _checked_limit(self, prompt: Sequence[int], limit: int | None) -> int:
        """Most new tokens after a prompt; None for all that there is room for."""
        room = self.max_seq_len - len(prompt)
        wanted = 1 if limit is None else limit
        if room < wanted:
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens and max_tokens is {wanted}; the model"
                f" reads {self.max_seq_len} in all; shorten one of them",
                "max_tokens",
                "context_length_exceeded",
            )
        return room if limit is None else limit

    def _job(
        self,
        asked: SamplingRequest,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        logprobs: int | None,
        num_echoed: Sequence[int] = (),
    ) -> Job:
        stops = self.default_stops if asked.stop is None else asked.stops
        answers = [
            Answer(
                number * asked.n + choice,
                TextStream(self.tokenizer, prompt, stops),
                is_scored=logprobs is not None,
                num_echoed=num_echoed[number] if num_echoed else 0,
            )
            for number, prompt in enumerate(prompts)
            for choice in range(asked.n)
        ]
        params = asked.sampling(self.defaults, self.vocab_size)
        return Job(prompts, limits, params, asked.n, answers, logprobs, is_streamed=asked.stream)

    def _reply(
        self,
        asked: SamplingRequest,
        job: Job,
        kind: Any,
        logprobs: int | None,
        echoes: Sequence[str] = (),
    ) -> ASGIApp:
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        replies = Replies(
            kind, self.tokenizer, self.name, logprobs is not None, logprobs or 0, with_usage
        )
        return JobReply(job, self.worker, replies, self.metrics, self.tokenizer, echoes)


async def read_request(request: Request, kind: type[Asked]) -> Asked:
    """The checked body of a request. Raises ApiError."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.body()
    except TimeoutError as error:
        raise ApiError(408, "the body did not arrive in time; send it again") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the client went away") from error
    try:
        return kind.model_validate(read_body(body))
    except ValidationError as error:
        raise invalid(error) from error

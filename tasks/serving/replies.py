"""Writes answers in OpenAI's form, whole or as chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import orjson

from tasks.serving.answers import Piece, ScoredToken, token_bytes, token_label
from tasks.tokenizer.encoder import Tokenizer

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Usage:
    """Tokens of a request: prompts once each, whatever `n`; answers all together."""

    prompt_tokens: int
    completion_tokens: int

    def described(self) -> dict[str, int]:
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


@dataclass(frozen=True)
class Replies:
    """The form of the answers to one request."""

    kind: Literal["completion", "chat"]
    tokenizer: Tokenizer
    model: str
    with_logprobs: bool
    num_top: int
    """Alternatives named at each token."""
    with_usage: bool = False
    """Whether a stream ends with the number of tokens."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """The answer to a request without a stream; one piece for each answer."""
        return self._frame(is_chunk=False) | {
            "choices": [self._whole_choice(piece) for piece in answers],
            "usage": usage.described(),
        }

    def opening(self, num_answers: int) -> bytes:
        """What a stream begins with: in a chat, who speaks."""
        if self.kind == "completion":
            return b""
        said = {"role": "assistant", "content": ""}
        return b"".join(
            self._event([{"index": index, "delta": said, "logprobs": None, "finish_reason": None}])
            for index in range(num_answers)
        )

    def chunk(self, piece: Piece) -> bytes:
        """A piece of an answer, as one event of a stream."""
        if self.kind == "completion":
            return self._event([self._whole_choice(piece)])
        choice = {
            "index": piece.index,
            "delta": {"content": piece.text} if piece.text or piece.tokens else {},
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": piece.finish,
        }
        return self._event([choice])

    def closing(self, usage: Usage) -> bytes:
        """What a stream ends with."""
        return (self._event([], usage.described()) if self.with_usage else b"") + DONE

    @staticmethod
    def failed(body: Mapping[str, Any]) -> bytes:
        """An error in the middle of a stream."""
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _event(self, choices: Sequence[Mapping[str, Any]], usage: Any = None) -> bytes:
        rest: dict[str, Any] = {"choices": choices}
        if self.with_usage:
            rest["usage"] = usage
        # The frame is the same in all events of a stream: it is written once.
        return b"".join((self._beginning, orjson.dumps(rest)[1:], b"\n\n"))

    @cached_property
    def _beginning(self) -> bytes:
        return b"data: " + orjson.dumps(self._frame(is_chunk=True))[:-1] + b","

    def _frame(self, is_chunk: bool) -> dict[str, Any]:
        if self.kind == "completion":
            prefix, name = "cmpl", "text_completion"
        else:
            prefix, name = "chatcmpl", "chat.completion.chunk" if is_chunk else "chat.completion"
        return {
            "id": f"{prefix}-{self.id}",
            "object": name,
            "created": self.created,
            "model": self.model,
        }

    def _whole_choice(self, piece: Piece) -> dict[str, Any]:
        ends = {"logprobs": self._logprobs(piece.tokens), "finish_reason": piece.finish}
        if self.kind == "completion":
            return {"index": piece.index, "text": piece.text, **ends}
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": piece.index, "message": message, **ends}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        if self.kind == "chat":
            return {"content": [self._chat_token(token) for token in tokens], "refusal": None}
        return {
            "tokens": [token_label(self.tokenizer, token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }

    def _alternatives(self, token: ScoredToken) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        # The chosen token is always among them; where labels are equal, the likeliest stays.
        pairs = [*token.top[: self.num_top], (token.id, token.logprob)]
        named: dict[str, float] = {}
        for id, logprob in pairs:
            named.setdefault(token_label(self.tokenizer, id), logprob)
        return named

    def _chat_token(self, token: ScoredToken) -> dict[str, Any]:
        assert token.logprob is not None, "only the first token of a prompt has none"
        top = [self._chat_logprob(id, logprob) for id, logprob in token.top[: self.num_top]]
        return self._chat_logprob(token.id, token.logprob) | {"top_logprobs": top}

    def _chat_logprob(self, id: int, logprob: float) -> dict[str, Any]:
        spelled = token_bytes(self.tokenizer, id)
        label = token_label(self.tokenizer, id)
        return {"token": label, "logprob": logprob, "bytes": list(spelled)}

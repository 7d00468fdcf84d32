"""Keeps answers to a JSON schema: at each token, which tokens may come next (`llguidance`, the
extra `textmill[json-schema]`).

JSON is written without spaces between its parts, so an answer cannot fill up with them. It ends
when the schema is fulfilled; an answer that reaches its longest length before is cut off.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tasks.serving.answers import token_bytes
from tasks.serving.failures import ApiError
from tasks.tokenizer.encoder import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LEXER_FUEL = 100_000
"""Work that building a schema's automaton may take: some tens of milliseconds. By default
`a{100000}` takes seconds."""


class JsonAnswers:
    """Grammars over the vocabulary of one model. One thread at a time."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int], device: torch.device
    ) -> None:
        self._tokenizer, self._vocab_size, self._device = tokenizer, vocab_size, device
        self._eos_ids = sorted(eos_ids)

    def allowed(self, schema: dict[str, Any]) -> AllowedTokens:
        """Raises ApiError where the schema is not one, or llguidance is not installed."""
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            raise ApiError(
                400,
                "response_format needs llguidance on the server: pip install"
                " 'textmill[json-schema]'",
                "response_format",
            ) from error
        try:
            grammar = LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides={"whitespace_flexible": False}
            )
            limits = LLParserLimits(initial_lexer_fuel=LEXER_FUEL, verbose_errors=False)
            matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        except ValueError as error:
            raise _not_a_schema(error) from error
        # Builds the automaton, here and not in the thread of the engine.
        matcher.compute_bitmask()
        if matcher.is_error():
            raise _not_a_schema(matcher.get_error())
        return AllowedTokens(matcher, self._vocab_size, self._eos_ids, self._device)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Spellings(self._tokenizer, self._eos_ids[0])))


class AllowedTokens:
    """The tokens that may follow each answer of one request; each is followed by a matcher of its
    own."""

    def __init__(
        self, start: LLMatcher, vocab_size: int, eos_ids: Sequence[int], device: torch.device
    ) -> None:
        self._start, self._vocab_size, self._device = start, vocab_size, device
        self._eos_ids = list(eos_ids)
        self._followed: dict[int, tuple[Sequence[int], LLMatcher, int]] = {}

    def __call__(self, answer: Sequence[int]) -> Tensor:
        """Boolean allowed_V after an answer, which may only have grown since the last call."""
        _, matcher, count = self._followed.get(id(answer)) or (answer, self._start.deep_copy(), 0)
        matcher.consume_tokens(list(answer[count:]))
        # The list is kept, so that no other can have its identity.
        self._followed[id(answer)] = answer, matcher, len(answer)
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed_V = np.zeros(self._vocab_size, bool)
        size = min(len(bits), self._vocab_size)
        allowed_V[:size] = bits[:size]
        allowed_V[self._eos_ids] = allowed_V[self._eos_ids[0]]
        if not allowed_V.any():  # beyond what the grammar can follow: the answer ends here
            allowed_V[self._eos_ids] = True
        return torch.from_numpy(allowed_V).to(self._device)


class _Spellings:
    """A tokenizer in the form that llguidance takes."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        ids = range(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.special_token_ids = [id for id in ids if not token_bytes(tokenizer, id)]
        self.tokens = [
            token_bytes(tokenizer, id) or tokenizer.name_of(id).encode() or b"?" for id in ids
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(plain).tolist()  # type: ignore[no-any-return]


def _not_a_schema(reason: object) -> ApiError:
    return ApiError(400, f"response_format is not a JSON schema ({reason})", "response_format")

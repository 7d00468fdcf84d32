"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from llm_core.config import ConfigError
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.choice.scores import Scored
from llm_core.model.config import ModelConfig

Finish = Literal["stop", "length"]
"""Why an answer ended: a stop id, or as many tokens as were asked for."""

Allowed = Callable[[Sequence[int]], "Tensor | None"]
"""The answer so far → boolean allowed_V of the next token on the device of the model; None: any."""


@dataclass(eq=False)
class Request:
    """A prompt with its limits and sampling, and its answers so far."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    n: int = 1
    """Answers, each from a random stream of its own."""
    logprobs: int | None = None
    """Likeliest tokens that are told beside each token; None: no logarithms at all."""
    prompt_logprobs: int | None = None
    """The same for tokens of the prompt."""
    first_choice: int = 0
    """Number of the first answer's random stream."""
    allowed: Allowed | None = None
    answers: list[list[int]] = field(default_factory=list)
    """Tokens of each answer so far, stop ids not among them."""
    finishes: list[Finish | None] = field(default_factory=list)
    """Why each answer ended; None: it has not, or was cancelled."""
    prompt_scores: list[Scored | None] = field(default_factory=list)
    """Of each token of the prompt, where asked for; None: not known yet, as the first never is."""

    def __post_init__(self) -> None:
        self.answers = [[] for _ in range(self.n)]
        self.finishes = [None] * self.n
        if self.prompt_logprobs is not None:
            self.prompt_scores = [None] * len(self.prompt_ids)

    def check(self, config: ModelConfig, what: str = "the prompt") -> None:
        """Raises ConfigError for what the model cannot answer."""
        check_prompt(config, self.prompt_ids, self.max_new_tokens, what)
        if self.n < 1:
            raise ConfigError(f"n ({self.n}) must be at least 1")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= config.vocab_size:
                raise ConfigError(f"{name} ({count}) must be from 0 to {config.vocab_size}")
        for name in ("logit_bias", "stop_ids"):
            for token in getattr(self.params, name):
                if not 0 <= token < config.vocab_size:
                    raise ConfigError(
                        f"{name} names token {token}, the model knows 0 to"
                        f" {config.vocab_size - 1}; leave it out"
                    )


class NewToken(NamedTuple):
    """One step of one answer. A tuple because several thousand are made a second."""

    request: Request
    choice: int
    """Which of the request's answers."""
    id: int | None
    """None where the answer ended without one more: a stop id is not part of it."""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] | None = None
    finish: Finish | None = None


def check_prompt(
    config: ModelConfig, prompt_ids: Sequence[int], max_new_tokens: int, what: str
) -> None:
    """Raises ConfigError."""
    if not prompt_ids:
        raise ConfigError(f"{what} is empty; begin it with the end-of-text id")
    for token in (min(prompt_ids), max(prompt_ids)):
        if not 0 <= token < config.vocab_size:
            raise ConfigError(
                f"{what} has token {token}, the model knows 0 to {config.vocab_size - 1}; encode it"
                " again"
            )
    if max_new_tokens < 0:
        raise ConfigError(f"max_new_tokens ({max_new_tokens}) must not be negative")
    if len(prompt_ids) + max_new_tokens > config.max_seq_len:
        rule = f"more than the model's max_seq_len ({config.max_seq_len})"
        raise ConfigError(
            f"{what} has {len(prompt_ids)} tokens and {max_new_tokens} new ones are {rule}; shorten"
            " it or generate fewer"
        )

"""Parameters by which a request chooses its tokens; `llm_core.infer.choice.choosing` applies them.

The order is: penalties and bias on the logits, then temperature, top-k, top-p, min-p, then one
draw. Definitions: temperature 0 takes the highest logit and draws nothing. top_k keeps the k
likeliest. top_p keeps the shortest prefix whose probability reaches top_p, renormalised after
top-k, at least one token, exactly one when the likeliest reaches it alone (Holtzman et al., 2020).
min_p keeps tokens of at least min_p times the likeliest. Equal logits are ordered by token id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_core.config import ConfigError

MIN_TEMPERATURE = 1e-5


class SamplingError(ValueError):
    """Logits from which no token can be drawn; the message names the row."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request chooses its tokens."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_k: int = 0
    """Likeliest tokens kept; 0 keeps all."""
    top_p: float = 1.0
    """Probability mass kept; 1 keeps all, 0 keeps one token."""
    min_p: float = 0.0
    """Least probability kept, relative to the likeliest token; 0 keeps all."""
    seed: int = 0
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens in prompt and answer, and multiplies their negative
    ones (Keskar et al., 2019); 1 changes nothing."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token as often as the answer holds it."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids; -100 all but forbids one, 100 all but forces it."""
    min_new_tokens: int = 0
    """No stop id is chosen before so many tokens."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end the answer and are not part of it, besides the model's own."""

    def __post_init__(self) -> None:
        if self.temperature != 0 and not MIN_TEMPERATURE <= self.temperature < math.inf:
            raise ConfigError(
                f"temperature ({self.temperature}) must be 0 or at least {MIN_TEMPERATURE}; 0 takes"
                " the likeliest token"
            )
        if not 0 <= self.top_k < 2**63:
            raise ConfigError(
                f"top_k ({self.top_k}) must be a non-negative 63-bit number; 0 keeps all tokens"
            )
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be between 0 and 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed ({self.seed}) must be a non-negative 63-bit number")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(
                f"repetition_penalty ({self.repetition_penalty}) must be positive; 1 changes"
                " nothing"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"{name} ({getattr(self, name)}) must be a finite number")
        if self.min_new_tokens < 0:
            raise ConfigError(f"min_new_tokens ({self.min_new_tokens}) must not be negative")
        for token, bias in self.logit_bias.items():
            if token < 0 or math.isnan(bias):
                raise ConfigError(f"logit_bias ({token}: {bias}) must map token ids to numbers")

    @property
    def counts_tokens(self) -> bool:
        """Whether logits are changed by the tokens so far, or by a bias of their own."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
        )


GREEDY = SamplingParams(temperature=0.0)

"""Parameters by which a request chooses its tokens; `llm_core.infer.choosing` applies them.

The order is: penalties and bias on the logits, then temperature, top-k, top-p, min-p, then one
draw. Definitions: temperature 0 takes the highest logit and draws nothing. top_k keeps the k
likeliest. top_p keeps the shortest prefix whose probability reaches top_p, renormalised after
top-k, at least one token, exactly one when the likeliest reaches it alone (Holtzman et al., 2020).
min_p keeps tokens of at least min_p times the likeliest. Equal logits are ordered by token id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
    """Added to the logits of these token ids; -100 or less forbids, 100 or more forces."""
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
        if self.top_k < 0:
            raise ConfigError(f"top_k ({self.top_k}) must not be negative; 0 keeps all tokens")
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
    def edits_logits(self) -> bool:
        """Whether anything but the draw depends on these parameters."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.min_new_tokens
        )


GREEDY = SamplingParams(temperature=0.0)


def make_generator(params: SamplingParams, request: int = 0) -> torch.Generator:
    """The random stream of one request: a function of its seed and its number alone."""
    # An odd multiplier keeps (seed, request) pairs of small numbers apart.
    return torch.Generator().manual_seed((params.seed + 0x9E3779B97F4A7C15 * request) % 2**63)


def kept_probabilities(logits_V: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """(remaining probabilities from high to low, which sum to one; their token ids)."""
    assert params.temperature > 0, "greedy choice has no distribution"
    logits_V = logits_V.float()
    sorted_V, ids_V = logits_V.sort(descending=True, stable=True)
    # The maximum goes first, so that a small temperature sends the rest to zero and nothing to
    # infinity.
    probabilities_V = torch.softmax((sorted_V - sorted_V[0]) / params.temperature, dim=0)
    num_kept = int((probabilities_V > 0).sum())
    if params.top_k:
        num_kept = min(num_kept, params.top_k)
    if params.top_p < 1:
        mass_V = probabilities_V[:num_kept] / probabilities_V[:num_kept].sum()
        # A token stays while those before it have not reached top_p; the first always does.
        num_kept = 1 + int((mass_V.cumsum(0)[:-1] < params.top_p).sum())
    if params.min_p > 0:
        num_kept = max(
            1, int((probabilities_V[:num_kept] >= params.min_p * probabilities_V[0]).sum())
        )
    kept_V = probabilities_V[:num_kept]
    return kept_V / kept_V.sum(), ids_V[:num_kept]


def sample(
    logits_BV: Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator]
) -> list[int]:
    """The next token id of every row, each by its own parameters and generator.

    Raises SamplingError for a row with NaN or plus infinity, or without a finite logit.
    """
    check_logits(logits_BV)
    likeliest_B = logits_BV.float().argmax(dim=-1).tolist()
    rows = zip(logits_BV, likeliest_B, params, generators, strict=True)
    return [
        _greedy(logits_V, likeliest) if p.temperature == 0 else _draw(logits_V, p, generator)
        for logits_V, likeliest, p, generator in rows
    ]


def check_logits(logits_BV: Tensor) -> None:
    # A maximum is NaN where one of the logits is.
    broken_B = ~logits_BV.amax(-1).isfinite()
    if bool(broken_B.any()):
        row = int(broken_B.nonzero()[0, 0])
        what = "only -inf" if bool((logits_BV[row] < 0).all()) else "+inf"
        what = "NaN" if bool(logits_BV[row].isnan().any()) else what
        raise SamplingError(
            f"row {row} of the logits has {what}; the weights or a mask are broken, no token can be"
            " chosen"
        )


def _greedy(logits_V: Tensor, likeliest: int) -> int:
    # argmax may name any of several equal maxima; the lowest id is the one to name on every device.
    return int((logits_V.float() == logits_V[likeliest].float()).nonzero()[0, 0])


def _draw(logits_V: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    probabilities_V, ids_V = kept_probabilities(logits_V, params)
    cumulative_V = probabilities_V.cumsum(0).cpu()
    uniform = torch.rand((), generator=generator)
    place = int(torch.searchsorted(cumulative_V, uniform * cumulative_V[-1], right=True))
    return int(ids_V[min(place, len(ids_V) - 1)])

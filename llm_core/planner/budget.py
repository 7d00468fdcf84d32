"""Says how many tokens a training takes, against what rules ask for and what the corpus has.

Tokens that are read again are worth less: D' = U (1 + R* (1 - e^(-R / R*))) for U unique tokens
that are read R times more, with R* = 15.39 (Muennighoff et al., 2023, equation 5). From 16 readings
on they may hurt, and the worth is an upper bound.

A model that answers much should be smaller and trained longer: of all (N, D) with the loss of the
planned ones the least 6 N D + 2 N D_inf (Sardana et al., 2024, equation 2). Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_core.planner.scaling import LAWS, TOKENS_PER_WEIGHT, ScalingLaw, interval_of_tokens

REREAD_WORTH = 15.39
"""R*: readings after which further ones are worth 1 / e of new tokens."""
MAX_EPOCHS = 16.0
"""Above these the worth of repetition was not measured to grow."""


@dataclass(frozen=True)
class Corpus:
    """Tokens of the training split, each counted once, and where the number comes from."""

    num_tokens: int
    source: str


@dataclass(frozen=True)
class OverTrained:
    """The model as good as the planned one that costs least in training and inference together."""

    law: str
    """Whose fit."""
    inference_tokens: float
    num_weights: float
    num_tokens: float
    saved_frac: float
    """Of the operations of both."""


@dataclass(frozen=True)
class TokenBudget:
    """Of one training."""

    num_tokens: int
    per_weight: float
    rule_tokens: float
    """TOKENS_PER_WEIGHT for each weight."""
    fitted_tokens: float
    """By Besiroglu et al. (2024), with the bounds of 95 % of its bootstrap."""
    fitted_low: float
    fitted_high: float
    corpus: Corpus | None = None
    epochs: float | None = None
    effective_tokens: float | None = None
    """New tokens that would teach as much."""
    over_trained: tuple[OverTrained, ...] = ()


def token_budget(
    num_weights: int, num_tokens: int, corpus: Corpus | None = None, inference_tokens: float = 0.0
) -> TokenBudget:
    """inference_tokens: that the model will read and write in all its life; 0: not known."""
    low, high = interval_of_tokens(num_weights)
    epochs = num_tokens / corpus.num_tokens if corpus else None
    over = tuple(
        over_train(name, num_weights, num_tokens, inference_tokens)
        for name in (("besiroglu", "sardana") if inference_tokens else ())
    )
    return TokenBudget(
        num_tokens,
        num_tokens / num_weights,
        TOKENS_PER_WEIGHT * num_weights,
        LAWS["besiroglu"].tokens_for(num_weights),
        low,
        high,
        corpus,
        epochs,
        worth_of_repeated(corpus.num_tokens, num_tokens) if corpus else None,
        over,
    )


def worth_of_repeated(unique_tokens: float, num_tokens: float) -> float:
    """New tokens that teach as much as `num_tokens` read from `unique_tokens`."""
    again = num_tokens / unique_tokens - 1
    if again <= 0:
        return num_tokens
    return unique_tokens * (1 + REREAD_WORTH * (1 - math.exp(-again / REREAD_WORTH)))


def over_train(
    law: str, num_weights: float, num_tokens: float, inference_tokens: float
) -> OverTrained:
    """By a published fit."""
    fit, goal = LAWS[law], LAWS[law].loss(num_weights, num_tokens)

    def flops(log_weights: float) -> float:
        weights = math.exp(log_weights)
        tokens = tokens_to_reach(fit, weights, goal)
        return 6 * weights * tokens + 2 * weights * inference_tokens

    # Cost falls and then rises, from the size that needs endless tokens on.
    least = (fit.weights_factor / (goal - fit.floor)) ** (1 / fit.weights_power)
    low, high = math.log(least) + 1e-9, math.log(least) + 10.0
    for _ in range(100):
        third = (high - low) / 3
        if flops(low + third) < flops(high - third):
            high -= third
        else:
            low += third
    weights = math.exp(low)
    planned = 6 * num_weights * num_tokens + 2 * num_weights * inference_tokens
    saved = 1 - flops(low) / planned
    tokens = tokens_to_reach(fit, weights, goal)
    return OverTrained(law, inference_tokens, weights, tokens, saved)


def tokens_to_reach(law: ScalingLaw, num_weights: float, loss: float) -> float:
    """Infinite for a model that is too small."""
    left = loss - law.floor - law.weights_factor / num_weights**law.weights_power
    return (law.tokens_factor / left) ** (1 / law.tokens_power) if left > 0 else math.inf

"""Relates loss, weights and tokens: scaling laws of the form L = E + A / N^α + B / D^β.

N counts weights, D tokens, and a training costs C = 6 N D operations (Kaplan et al., 2020). Of all
that cost C the least loss has N = G (C / 6)^a with G = (α A / β B)^(1 / (α + β)) and
a = β / (α + β) (Hoffmann et al., 2022, equation 4). Standard library only.

| fit | of |
|---|---|
| `besiroglu` | Besiroglu et al. (2024): the runs of Hoffmann et al. fitted again; 18 to 23 tokens a weight |
| `hoffmann` | Hoffmann et al. (2022), approach 3 as printed; its exponents are rounded, and give 40 to 93 tokens a weight where the paper's own models have 20 |
| `muennighoff` | Muennighoff et al. (2023), on C4 |
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass

TOKENS_PER_WEIGHT = 20.0
"""The rule of thumb after Hoffmann et al. (2022), table 3."""
EPOCH_DECAY = 15.39
"""How fast repeated tokens lose their worth (Muennighoff et al., 2023, R*_D)."""


@dataclass(frozen=True)
class ScalingLaw:
    """Nats per token, as a function of weights and tokens."""

    floor: float
    weights_factor: float
    tokens_factor: float
    weights_power: float
    tokens_power: float

    def loss(self, num_weights: float, num_tokens: float) -> float:
        return (
            self.floor
            + self.weights_factor / num_weights**self.weights_power
            + self.tokens_factor / num_tokens**self.tokens_power
        )

    def best_weights(self, flops: float) -> float:
        """Weights of the least loss that training can reach with so many operations."""
        powers = self.weights_power + self.tokens_power
        scale = (
            self.weights_power * self.weights_factor / (self.tokens_power * self.tokens_factor)
        ) ** (1 / powers)
        return scale * (flops / 6) ** (self.tokens_power / powers)

    def best_tokens(self, flops: float) -> float:
        return flops / 6 / self.best_weights(flops)

    def tokens_for(self, num_weights: float) -> float:
        """Tokens up to which more weights would not have been the better use of the same work."""
        ratio = self.weights_power * self.weights_factor / (self.tokens_power * self.tokens_factor)
        # Along the best path α A / N^α = β B / D^β.
        return (num_weights**self.weights_power / ratio) ** (1 / self.tokens_power)

    def tokens_to_reach(self, loss: float, num_weights: float) -> float:
        """Infinite where a model of this size never gets there."""
        rest = loss - self.floor - self.weights_factor / num_weights**self.weights_power
        return (self.tokens_factor / rest) ** (1 / self.tokens_power) if rest > 0 else math.inf

    def weights_with_use(
        self, num_weights: float, num_tokens: float, used_tokens: float
    ) -> tuple[float, float]:
        """(weights, tokens) of the same loss that cost least in training and use together:
        6 N D + 2 N D_used (Sardana et al., 2024, equation 3)."""
        loss = self.loss(num_weights, num_tokens)

        def cost(size: float) -> float:
            tokens = self.tokens_to_reach(loss, size)
            return 6 * size * tokens + 2 * size * used_tokens

        low, high = math.log(num_weights) - 5, math.log(num_weights) + 1
        ratio = (math.sqrt(5) - 1) / 2
        for _ in range(100):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            # Where both never get there, only more weights can.
            if cost(math.exp(left)) < cost(math.exp(right)):
                high = right
            else:
                low = left
        size = math.exp((low + high) / 2)
        return size, self.tokens_to_reach(loss, size)


LAWS = {
    "besiroglu": ScalingLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
    "hoffmann": ScalingLaw(1.69, 406.4, 410.7, 0.34, 0.28),
    "muennighoff": ScalingLaw(1.87, 521.0, 1488.0, 0.353, 0.353),
    "sardana": ScalingLaw(1.69, 406.4, 410.7, 0.336, 0.283),
}
"""Published fits, by the first author. sardana: Hoffmann's with the exponents that Sardana et al.
(2024) used."""


def worth_of_epochs(unique_tokens: float, num_tokens: float) -> float:
    """Tokens seen once that teach as much as `num_tokens` of a text with `unique_tokens`
    (Muennighoff et al., 2023, equation 5)."""
    repeats = max(0.0, num_tokens / unique_tokens - 1)
    if repeats == 0:
        return num_tokens
    return unique_tokens * (1 + EPOCH_DECAY * -math.expm1(-repeats / EPOCH_DECAY))

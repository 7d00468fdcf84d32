"""Relates loss, weights and tokens: scaling laws of the form L = E + A / N^α + B / D^β.

N counts weights, D tokens, and a training costs C = 6 N D operations (Kaplan et al., 2020). Of all
that cost C the least loss has N = G (C / 6)^a with G = (α A / β B)^(1 / (α + β)) and
a = β / (α + β) (Hoffmann et al., 2022, equation 4). Standard library only.

| fit | of |
|---|---|
| `besiroglu` | Besiroglu et al. (2024): the runs of Hoffmann et al. fitted again; 18 to 23 tokens a weight |
| `sardana` | Sardana et al. (2024): approach 3 with more digits, as their figures need |
| `hoffmann` | Hoffmann et al. (2022), approach 3 as printed; its exponents are rounded, and give 40 to 93 tokens a weight where the paper's own models have 20 |
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass

TOKENS_PER_WEIGHT = 20.0
"""The rule of thumb after Hoffmann et al. (2022), table 3."""


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

    @property
    def exponent(self) -> float:
        """a: how the best size grows with the work."""
        return self.tokens_power / (self.weights_power + self.tokens_power)

    def best_weights(self, flops: float) -> float:
        """Weights of the least loss that training can reach with so many operations."""
        powers = self.weights_power + self.tokens_power
        scale = (
            self.weights_power * self.weights_factor / (self.tokens_power * self.tokens_factor)
        ) ** (1 / powers)
        return scale * (flops / 6) ** self.exponent

    def best_tokens(self, flops: float) -> float:
        return flops / 6 / self.best_weights(flops)

    def tokens_for(self, num_weights: float) -> float:
        """Tokens up to which more weights would not have been the better use of the same work."""
        ratio = self.weights_power * self.weights_factor / (self.tokens_power * self.tokens_factor)
        # Along the best path α A / N^α = β B / D^β.
        return (num_weights**self.weights_power / ratio) ** (1 / self.tokens_power)


LAWS = {
    "besiroglu": ScalingLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
    "sardana": ScalingLaw(1.69, 406.4, 410.7, 0.336, 0.283),
    "hoffmann": ScalingLaw(1.69, 406.4, 410.7, 0.34, 0.28),
}
"""Published fits, by the first author."""

SURE_WEIGHTS = 3.6e8
"""Size for which the runs of Hoffmann et al. say most of its tokens."""
SURE_SPREAD, SPREAD_PER_E_FOLD = 0.0441, 0.0719
"""Standard deviation of ln D at that size, and what each factor of e away from it adds, over 1,000
draws of the 240 runs that Besiroglu et al. read off a figure, fitted by
`llm_core.planner.scaling_fit`."""


def interval_of_tokens(num_weights: float) -> tuple[float, float]:
    """Bounds of 95 % around `LAWS["besiroglu"].tokens_for`."""
    away = SPREAD_PER_E_FOLD * math.log(num_weights / SURE_WEIGHTS)
    spread = math.exp(1.96 * math.hypot(SURE_SPREAD, away))
    tokens = LAWS["besiroglu"].tokens_for(num_weights)
    return tokens / spread, tokens * spread

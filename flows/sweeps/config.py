"""Defines how a sweep finds its points, judges them, and stops those that fall behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flows.tracking.headline import HEADLINE, MEASURED_IN_TRAINING, OBJECTIVE
from llm_core.config import ConfigError, nearest


@dataclass(frozen=True)
class SweepConfig:
    """Points of a sweep (`-m`), and what they are judged by."""

    params: dict[str, str] = field(default_factory=dict)
    """Values by setting or group, as an override gives them: 1e-3,3e-3. The command line takes
    precedence."""
    objective: str = OBJECTIVE
    """Headline number that points are ranked by."""
    direction: Literal["minimize", "maximize"] | None = None
    """Which values are better. Null: less for losses, bits and sizes, more for speeds and counts of
    data."""
    sampler: Literal["all", "tpe", "random"] = "all"
    """all: every combination. tpe: a search by Optuna, which learns from finished points. random:
    points at random."""
    num_trials: int = 20
    """Points that a search tries. A larger number continues a search that has ended."""
    pruner: Literal["none", "median", "halving"] = "none"
    """Stops a training that falls behind at a validation. median: behind the median of the other
    points at that step, after three of them. halving: behind the best quarter (successive
    halving)."""
    seed: int = 0
    """Seed of the search."""

    def __post_init__(self) -> None:
        if self.objective not in HEADLINE:
            raise ConfigError(
                f"sweep.objective ({self.objective}) is not a headline number;"
                f" {nearest(self.objective, list(HEADLINE))}"
            )
        if self.num_trials < 1:
            raise ConfigError(f"sweep.num_trials ({self.num_trials}) must be at least 1; try 20")
        if self.seed < 0:
            raise ConfigError(f"sweep.seed ({self.seed}) must not be negative; try 0")
        if self.pruner != "none" and self.objective not in MEASURED_IN_TRAINING:
            raise ConfigError(
                f"sweep.pruner ({self.pruner}) needs an objective that training measures:"
                f" {' or '.join(MEASURED_IN_TRAINING)}; sweep.objective is {self.objective}"
            )

    @property
    def is_search(self) -> bool:
        """Whether Optuna keeps the points of the sweep."""
        return self.sampler != "all" or self.pruner != "none"

    @property
    def maximizes(self) -> bool:
        return (self.direction or HEADLINE[self.objective].direction) == "maximize"

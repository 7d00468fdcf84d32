"""Configures training on preferences. Standard library only, as `llm_core.training.config`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_core.config import NOT_IN_KEY, ConfigError


@dataclass(frozen=True)
class PreferenceConfig:
    """What is learnt from pairs of answers."""

    kind: Literal["none", "dpo"] = "none"
    """none: training predicts tokens. dpo: it raises the probability of chosen answers against
    rejected ones, measured from the model in `train.init_from` (Rafailov et al., 2023)."""
    beta: float = 0.1
    """How much a change of log-probability counts; a larger one keeps the model closer to the
    reference."""
    label_smoothing: float = 0.0
    """Share of pairs that are taken to be labelled the wrong way round (conservative DPO)."""
    references: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Folder that keeps log-probabilities of the reference model for every run with the same base
    and shards. Null: beside the run's unfinished work."""

    def __post_init__(self) -> None:
        if self.kind == "none" and (self.beta, self.label_smoothing) != (0.1, 0.0):
            raise ConfigError(
                "preference.beta and preference.label_smoothing belong to kind=dpo, kind is none;"
                " use train=dpo"
            )
        if not 0 < self.beta < math.inf:
            raise ConfigError(f"preference.beta ({self.beta}) must be positive; 0.1 is usual")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(
                f"preference.label_smoothing ({self.label_smoothing}) must be at least 0 and below"
                " 0.5, from where on the other answer would be preferred; 0.1 is usual"
            )

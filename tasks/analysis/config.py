"""Sets the size of the samples: the settings of `tasks.analysis.stage`."""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.config import ConfigError


@dataclass(frozen=True)
class AnalysisConfig:
    """How large the samples are."""

    max_sample_units: int = 1 << 20
    """Units in the sample of each state: words, or letters of scripts without spaces."""
    vendi_documents: int = 256
    """Documents in one group of the Vendi score; the score cannot be larger."""
    vendi_groups: int = 8
    """Disjoint groups, over which mean and spread are taken."""
    seed: int = 0
    """Another seed samples other documents."""

    def __post_init__(self) -> None:
        if self.max_sample_units < 1000:
            raise ConfigError(
                f"max_sample_units ({self.max_sample_units}) must be at least 1000; try {1 << 20}"
            )
        if self.vendi_documents < 2:
            raise ConfigError(
                f"vendi_documents ({self.vendi_documents}) must be at least 2; try 256"
            )
        if not 2 <= self.vendi_groups <= 10:
            raise ConfigError(f"vendi_groups ({self.vendi_groups}) must be from 2 to 10; try 8")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed ({self.seed}) must be from 0 to 2^63 - 1; the default is 0")

"""Sets the size of the samples: the settings of `tasks.analysis.stage`."""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.config import check_bounds


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
        check_bounds(self, max_sample_units=(1000, None), vendi_documents=(2, None))
        check_bounds(self, vendi_groups=(2, 10), seed=(0, None))

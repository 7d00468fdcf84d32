"""Names the suites to look for and what counts as found: the settings of
`tasks.contamination.stage`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from llm_core.config import ConfigError, check_bounds
from tasks.contamination.suites import SuiteConfig
from tasks.readers.textfiles import check_text_files


@dataclass(frozen=True)
class ContaminationConfig:
    """Which suites are looked for, and what counts as found."""

    suites: dict[str, SuiteConfig] = field(default_factory=dict)
    """Evaluation suites by name."""
    action: Literal["drop", "report"] = "drop"
    """What happens to contaminated documents. report: they stay, and are listed."""
    ngram_units: int = 13
    """Units in an n-gram."""
    min_units: int = 8
    """Items that have fewer units, answer included, are not searched for: they occur in many texts
    by chance."""
    max_ngram_documents: int | None = 10
    """N-grams that occur in more documents count only where all of a longer item is found. Null:
    all count."""
    min_item_frac: float = 0.0
    """Least share of an item's n-grams that a document must contain. 0: one is enough."""

    def __post_init__(self) -> None:
        check_bounds(
            self, ngram_units=(2, 100), max_ngram_documents=(1, None), min_item_frac=(0, 1)
        )
        if not 1 <= self.min_units <= self.ngram_units:
            raise ConfigError(
                f"min_units ({self.min_units}) must be from 1 to ngram_units ({self.ngram_units});"
                f" try {min(8, self.ngram_units)}"
            )

    def also_of(self, suites: dict[str, SuiteConfig]) -> ContaminationConfig:
        """With these suites too; those that are named here go before."""
        return replace(self, suites={**suites, **self.suites})

    def input_files(self) -> dict[str, Path]:
        """{suite: file}. Raises ConfigError where one is not there, or has no reader."""
        for name, suite in self.suites.items():
            check_text_files(f"contamination.suites.{name}.path", (suite.path,))
        return {name: suite.path for name, suite in self.suites.items()}

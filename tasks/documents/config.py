"""Sets how kept documents are divided and mixed: the settings of `tasks.documents.stage`."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_core.config import IN_KEY_IF_SET, ConfigError, check_bounds
from tasks.documents.mixture import MixtureConfig


@dataclass(frozen=True)
class DocumentsConfig:
    """How the kept documents are divided and mixed."""

    validation_frac: float = 0.05
    """Share of the text bytes that is held out for validation."""
    seed: int = 0
    """Another seed holds out other families."""
    group_key: str | None = field(default=None, metadata=IN_KEY_IF_SET)
    """Metadata key of groups that stay together, as `repository` of code: no group is in both
    splits, and its documents are neighbours in the shards. Null: no groups."""
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    """How often training documents are read in one epoch."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_frac <= 0.5:
            raise ConfigError(
                f"validation_frac ({self.validation_frac}) must be above 0 and at most 0.5; the"
                " default is 0.05"
            )
        check_bounds(self, seed=(0, None))

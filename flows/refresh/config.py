"""Sets what runs over one source share, and how they are compared."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_core.config import ConfigError
from tasks.analysis.drift import DriftConfig

FIRST = "first"


@dataclass(frozen=True)
class RefreshConfig:
    """What a run shares with earlier runs over the same source, and what counts as drift."""

    series: str | None = None
    """Name of the runs that belong together. Null: runs with the same `dedup.chain`, else those
    with the same source names and paths. The report of a run of a named series shows what changed
    since the run before."""
    tokenizer: str | None = None
    """Tokenizer to keep. first: that of the first completed run of the series with the same
    tokenizer settings. A key: that one. Null: train one whenever documents change."""
    drift: DriftConfig = field(default_factory=DriftConfig)

    def __post_init__(self) -> None:
        for name in ("series", "tokenizer"):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise ConfigError(f"{name} ({value!r}) is blank; give a name, or null")

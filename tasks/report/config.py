"""Sets how the page of a run presents itself: the settings of `tasks.report.stage`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_core.config import ConfigError
from tasks.analysis.drift import DriftConfig


@dataclass(frozen=True)
class ReportConfig:
    """How the page presents itself."""

    title: str = "From raw text to a language model"
    """Heading of the page, and its name in a browser tab."""

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ConfigError("title is blank; a page needs a name, e.g. title='My first model'")


@dataclass(frozen=True)
class ComparedReportConfig(ReportConfig):
    """The same for a run that is compared with one before it: what `tasks.report.stage` is given.

    No setting of a user's: a run finds out which one that is (`flows.refresh.changes`).
    """

    before: Mapping[str, str] = field(default_factory=dict)
    """{stage: key of its artifact in the same store} of the run before."""
    drift: DriftConfig = field(default_factory=DriftConfig)

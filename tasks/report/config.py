"""Sets how the page of a run presents itself: the settings of `tasks.report.stage`."""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.config import ConfigError


@dataclass(frozen=True)
class ReportConfig:
    """How the page presents itself."""

    title: str = "From raw text to a language model"
    """Heading of the page, and its name in a browser tab."""

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ConfigError("title is blank; a page needs a name, e.g. title='My first model'")

"""Refuses settings beside a choice that they do not go with. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable

from llm_core.config import ConfigError

Wanted = tuple[str, object, object]
"""(a setting, its value, the value that goes with the choice)."""


def refuse_others(values: Iterable[Wanted], choice: str, way_out: str = "") -> None:
    """Raises ConfigError for the first setting with another value.

    choice: what it does not go with. way_out: besides setting it as wanted.
    """
    for name, value, wanted in values:
        if value != wanted:
            raise ConfigError(
                f"{name} ({str(value).lower()}) does not go with {choice}; set"
                f" {name}={str(wanted).lower()}{way_out}"
            )

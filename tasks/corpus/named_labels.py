"""Checks that every language and source that a configuration names exists in its run.

A rule for a label that no document carries is a filter that silently never applies. What the words
of a field name stands in its metadata (`NAMES_LANGUAGES`, `NAMES_SOURCES`, `IS_CONDITION`), so a
new field is checked where it is declared. Languages are held against the labels of the configured
model, sources against the configured ones unless a column of the records names them; of conditions,
what `language` and `source` are compared with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from llm_core.config import ConfigError, nearest
from tasks.corpus.language_labels import check_label

NAMES_LANGUAGES: Mapping[str, Any] = {"names": "language"}
"""Metadata of a field whose text, items or keys are labels of languages."""
NAMES_LANGUAGES_OR_ANY: Mapping[str, Any] = {"names": "language", "besides": "any"}
NAMES_SOURCES: Mapping[str, Any] = {"names": "source"}
"""Metadata of a field whose items or keys are names of sources."""
IS_CONDITION: Mapping[str, Any] = {"names": "condition"}
"""Metadata of a field that holds a condition on documents (`tasks.corpus.conditions`)."""


def check_labels(
    config: Any, languages: Callable[[], Collection[str]], sources: Collection[str] | None
) -> None:
    """Raise ConfigError for the first label of `config` that is none of these.

    languages: called where a language is named, as a model may have to be read. sources: None where
    they are not known yet.
    """

    def check(kind: str, where: str, label: str) -> None:
        if kind == "language":
            check_label(label, where, languages())
        elif sources is not None and label not in sources:
            raise ConfigError(
                f"{where} names {label}, which is not a source of this run;"
                f" {nearest(label, list(sources))}"
            )

    for kind, where, word in _named(config, ""):
        if kind != "condition":
            check(kind, where, word)
            continue
        from tasks.corpus.conditions import check_condition, compared_values

        check_condition(where, word)
        for column in ("language", "source"):
            for label in compared_values(word, column):
                check(column, f"{where} ({word})", label)


def check_conditions(config: Any, place: str) -> None:
    """Raise ConfigError for the first condition of `config` that is not valid."""
    from tasks.corpus.conditions import check_condition

    for kind, where, word in _named(config, place):
        if kind == "condition":
            check_condition(where, word)


def _named(config: Any, place: str) -> Iterator[tuple[str, str, str]]:
    """(language, source or condition; place in the configuration; word) of every field that says
    what it names."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from _named(value, f"{place}.{key}")
    elif dataclasses.is_dataclass(config):
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            where = f"{place}.{field.name}" if place else field.name
            if "names" in field.metadata and value is not None:
                kind, besides = field.metadata["names"], field.metadata.get("besides")
                words = (value,) if isinstance(value, str) else value
                yield from ((kind, where, word) for word in words if word != besides)
            yield from _named(value, where)

"""Defines limits on features and scores, and overlays: other rules for some documents.

These are settings; `tasks.quality.rules` makes rules of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_core.config import ConfigError, nearest
from tasks.corpus.language_labels import check_label
from tasks.corpus.named_labels import NAMES_LANGUAGES
from tasks.definitions.features import FEATURES
from tasks.quality.presets import PRESETS, RULE_NAMES


@dataclass(frozen=True)
class Limit:
    """Bounds of one feature or score; the bounds themselves pass, and so does a document without
    the score.

    Shares, quantiles and draws are for scores only (`tasks.quality.score_limits`): other features
    are measured in the same pass.
    """

    min: float | None = None
    """Lower bound. Null: none."""
    max: float | None = None
    """Upper bound. Null: none."""

    min_by_language: dict[str, float] = field(default_factory=dict, metadata=NAMES_LANGUAGES)
    """Lower bounds of languages, by label; `min` holds for the others."""

    max_by_language: dict[str, float] = field(default_factory=dict, metadata=NAMES_LANGUAGES)
    """Upper bounds of languages, by label; `max` holds for the others."""

    keep_frac: float | None = None
    """Share of the scored documents that is kept, best first. Null: no such limit."""

    min_quantile: float | None = None
    """Documents under this quantile of the score are dropped."""

    max_quantile: float | None = None
    """Documents over this quantile of the score are dropped."""

    each_language: bool | None = None
    """Apply shares and quantiles to each language by itself. Null: where scores of different
    languages do not compare."""

    pareto: float | None = None
    """Keep at random, better documents more often: where a Pareto variate of this shape, drawn from
    the id, is over 1 - score."""

    spare_frac: float = 0.0
    """Share of documents, drawn from their ids, to which the limit does not apply."""

    languages: tuple[str, ...] = field(default=(), metadata=NAMES_LANGUAGES)
    """Labels the limit applies to; empty for all."""

    drops: bool = True
    """Drop documents beyond the limit; false only records them."""

    def __post_init__(self) -> None:
        of_languages = (*self.min_by_language, *self.max_by_language)
        is_bound = self.min is not None or self.max is not None or bool(of_languages)
        if not is_bound and not self.is_share and self.pareto is None:
            raise ConfigError(
                "a limit without min, max, keep_frac, a quantile or pareto limits nothing; give one"
                " of them"
            )
        for name in ("keep_frac", "min_quantile", "max_quantile"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ConfigError(f"{name} ({value:g}) must be between 0 and 1, e.g. {name}=0.1")
        if self.keep_frac is not None and (self.min_quantile, self.max_quantile) != (None, None):
            raise ConfigError(
                f"keep_frac ({self.keep_frac:g}) and quantiles exclude each other; give keep_frac,"
                " or min_quantile and max_quantile"
            )
        if self.is_share and is_bound:
            raise ConfigError(
                "keep_frac and quantiles exclude min and max, which they compute; give one of the"
                " two"
            )
        if self.pareto is not None and self.pareto <= 0:
            raise ConfigError(
                f"pareto ({self.pareto:g}) must be positive; try 9, as for GPT-3's filter"
            )
        if not 0 <= self.spare_frac < 1:
            raise ConfigError(
                f"spare_frac ({self.spare_frac:g}) must be at least 0 and under 1; 0 spares none"
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ConfigError(
                f"min ({self.min:g}) must not be over max ({self.max:g}): no document would pass"
            )
        for label in (*self.languages, *of_languages):
            check_label(label, "languages")

    @property
    def is_share(self) -> bool:
        return (self.keep_frac, self.min_quantile, self.max_quantile) != (None, None, None)

    @property
    def needs_score(self) -> bool:
        """Whether it depends on other documents or on chance, which limits on features do not."""
        return self.is_share or self.pareto is not None or self.spare_frac > 0


@dataclass(frozen=True)
class RuleOverlay:
    """What some documents are judged by instead."""

    presets: tuple[str, ...] | None = None
    """Presets that drop these documents. Null: those of the run."""

    record: tuple[str, ...] | None = None
    """Presets that are only recorded for these documents. Null: those of the run."""

    thresholds: dict[str, float | None] = field(default_factory=dict)
    """Other thresholds by rule; null switches a rule off."""

    limits: dict[str, Limit] = field(default_factory=dict)
    """Further bounds by feature, in place of those of the run on the same feature."""

    def __post_init__(self) -> None:
        check_names(self.presets or (), self.record or (), self.thresholds, self.limits)


def check_names(
    presets: Sequence[str],
    record: Sequence[str],
    thresholds: Mapping[str, float | None],
    limits: Mapping[str, Limit],
) -> None:
    """Raise ConfigError on a preset, rule or feature that does not exist."""
    for setting, names in (("presets", presets), ("record", record)):
        for name in names:
            if name not in PRESETS:
                family = name.partition("/")[0] + "/"
                known = [p for p in PRESETS if p.startswith(family)]
                known = known or [*(p for p in PRESETS if "/" not in p), "fineweb2/LANGUAGE"]
                raise ConfigError(
                    f"{setting} names {name}, which is not a preset; {nearest(name, known)}"
                )
    for name in thresholds:
        if name not in RULE_NAMES:
            raise ConfigError(
                f"thresholds names {name}, which is not a rule; {nearest(name, list(RULE_NAMES))}"
            )
    for name, limit in limits.items():
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise ConfigError(
                f"limits names {name}, which is neither a feature nor a score;"
                f" {nearest(name, list(FEATURES))}"
            )
        if name in FEATURES and limit.needs_score:
            raise ConfigError(
                f"limits.{name}: shares, quantiles and draws are for scores; set min or max for a"
                " feature"
            )


def drawn_feature(score: str) -> str:
    """Column of how far a score is over what was drawn for the document."""
    return f"{score}_over_draw"

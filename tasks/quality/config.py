"""Chooses the rules that judge documents: the settings of `tasks.quality.stage`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from llm_core.config import ConfigError, nearest
from tasks.corpus.language_labels import check_label
from tasks.corpus.listfiles import check_list_files
from tasks.corpus.named_labels import NAMES_LANGUAGES, NAMES_SOURCES
from tasks.quality.c4_lines import LineCutsConfig
from tasks.quality.keywords import (
    KeywordList,
    check_keywords,
    keyword_feature,
    keyword_files,
    keyword_rules,
)
from tasks.quality.limits import Limit, RuleOverlay, check_names
from tasks.quality.rules import RuleBook
from tasks.quality.url_rules import UrlRules, check_url_files, url_files, url_rules


@dataclass(frozen=True)
class BucketConfig:
    """By which score documents fall into buckets, and where the buckets part."""

    score: str | None = None
    """Score of the scores stage that decides, such as perplexity. Null: no buckets."""

    head_frac: float = 0.3
    """Share of the scored documents of a language in the head."""

    middle_frac: float = 0.3
    """Share in the middle; the tail is the rest."""

    cuts: dict[str, tuple[float, float]] = field(default_factory=dict, metadata=NAMES_LANGUAGES)
    """{language: the two scores where its head and its middle end}, in place of the shares. CCNet's
    for en: [340, 520]."""

    def __post_init__(self) -> None:
        for name in ("head_frac", "middle_frac"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} ({getattr(self, name):g}) must be between 0 and 1; try 0.3"
                )
        if self.head_frac + self.middle_frac >= 1:
            raise ConfigError(
                f"head_frac ({self.head_frac:g}) and middle_frac ({self.middle_frac:g}) leave no"
                " tail; try 0.3 and 0.3"
            )
        for label in self.cuts:
            check_label(label, "cuts")
        if self.cuts and self.score is None:
            raise ConfigError(
                "cuts are values of a score, and none is named; give one, e.g. score=perplexity"
            )


@dataclass(frozen=True)
class QualityConfig:
    """Which rules judge which documents, and which of them drop."""

    presets: tuple[str, ...] = ("mixed",)
    """Presets of rules that drop documents: `mixed`, `gopher`, `fineweb_code`, `fineweb_paper`,
    `c4_paper` and `fineweb2/LANGUAGE`."""

    record: tuple[str, ...] = ("c4_paper",)
    """Presets whose rules are only recorded."""

    thresholds: dict[str, float | None] = field(default_factory=dict)
    """Thresholds by rule that replace the published ones, such as {TOO_FEW_WORDS: 20}. Null
    switches a rule off."""

    limits: dict[str, Limit] = field(default_factory=dict)
    """Further bounds, by the feature or score they apply to."""

    by_language: dict[str, RuleOverlay] = field(default_factory=dict, metadata=NAMES_LANGUAGES)
    """Other rules for documents of a language, by label."""

    by_kind: dict[str, RuleOverlay] = field(default_factory=dict)
    """Other rules for documents of a kind (mail, code, verse …); they override those of the
    language."""

    kind_of_source: dict[str, str] = field(default_factory=dict, metadata=NAMES_SOURCES)
    """{source: kind in `by_kind`} for documents that state no such kind themselves."""

    kind_key: str | None = "kind"
    """Metadata key whose value is the document's kind. Null: only sources decide."""

    by_source: dict[str, RuleOverlay] = field(default_factory=dict, metadata=NAMES_SOURCES)
    """Other rules for documents of a source, by name; they override those of language and kind."""

    buckets: BucketConfig = field(default_factory=BucketConfig)
    """Head, middle and tail of each language by a score; they drop nothing."""

    keywords: dict[str, KeywordList] = field(default_factory=dict)
    """Lists of terms by name, for all documents of their languages."""

    urls: UrlRules = field(default_factory=UrlRules)
    """Lists of domains, URLs and words in URLs, for all documents."""

    line_cuts: LineCutsConfig = field(default_factory=LineCutsConfig)
    """Lines that are removed from documents that stay; rules and dedup judge the whole text."""

    def __post_init__(self) -> None:
        check_names(self.presets, self.record, self.thresholds, self.limits)
        check_keywords(self.keywords)
        for label in self.by_language:
            check_label(label, "by_language")
        for source, kind in self.kind_of_source.items():
            if kind not in self.by_kind:
                hint = "take quality=by_kind, or write some"
                raise ConfigError(
                    f"kind_of_source.{source} is {kind}, which has no rules in by_kind;"
                    f" {nearest(kind, list(self.by_kind)) if self.by_kind else hint}"
                )
        self.rule_book()

    def rule_book(self) -> RuleBook:
        """Raises ConfigError where the chosen rules contradict each other."""
        base = RuleOverlay(self.presets, self.record, self.thresholds, self.limits)
        of_lists = [*url_rules(self.urls), *keyword_rules(self.keywords)]
        overlays = {"source": self.by_source, "language": self.by_language, "kind": self.by_kind}
        return RuleBook(base, overlays, of_lists)

    def all_limits(self) -> list[tuple[str, dict[str, Limit]]]:
        """(where they are set, limits), those of the run first, under an empty name."""
        axes = {"language": self.by_language, "kind": self.by_kind, "source": self.by_source}
        return [("", self.limits)] + [
            (f"by_{axis}.{label}.", overlay.limits)
            for axis, overlays in axes.items()
            for label, overlay in overlays.items()
        ]

    def list_features(self) -> tuple[str, ...]:
        """Columns of what lists find."""
        return (*self.urls.finds, *map(keyword_feature, self.keywords))

    def input_files(self) -> dict[str, Path]:
        """Files of lists, whose contents are part of the key. Raises ConfigError where one is
        missing, and for an entry in a file of URLs that means nothing."""
        for name, one in self.keywords.items():
            check_list_files(f"quality.keywords.{name}.files", one.files)
        check_url_files(self.urls)
        return keyword_files(self.keywords) | url_files(self.urls)

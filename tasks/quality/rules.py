"""Finds the rules that judge a document, and its verdict.

A run names presets (tasks.quality.presets) that drop and presets that are only recorded, other
thresholds for single rules, and limits on any feature (tasks.quality.limits). Documents of some
languages, kinds or sources can have others: `by_language` is laid over the rules of the run,
`by_kind` over both, and `by_source` over all three. An overlay that names presets starts from their
own thresholds; thresholds of the run were meant for the presets of the run. Limits are handed down.

A verdict has one bit per rule name. Where two chosen presets have a rule of one name but with
another threshold, one bit cannot hold both answers: that is an error at the start, and the way out
is one number for both in `thresholds`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from llm_core.config import ConfigError
from tasks.corpus.metadata import text_under
from tasks.quality.limits import RuleOverlay, drawn_feature
from tasks.quality.presets import LISTING_WORDS, MIN_LINES, PRESETS, RULE_NAMES, Rule

MAX_RULES = 64
WITHOUT_TERMINAL_PUNCTUATION = ("th", "lo")
UNSEGMENTED_FROM = 0.5
"""Share of unsegmented letters among the units from which a document counts as written without
spaces."""


@dataclass(frozen=True)
class Judgement:
    """One rule of a rule book as it applies to some documents: its bit, and whether it drops."""

    bit: int
    rule: Rule
    drops: bool


class Place(NamedTuple):
    """Documents that may have rules of their own; None stands for every source, language or kind
    without any."""

    source: str | None = None
    language: str | None = None
    kind: str | None = None


class RuleBook:
    """All rules of a run with their bits, and which of them judge a document of some source,
    language and kind."""

    def __init__(
        self,
        base: RuleOverlay,
        overlays: Mapping[str, Mapping[str, RuleOverlay]],
        of_lists: Sequence[tuple[Rule, bool]],
    ) -> None:
        """Raises ConfigError where a rule would need two thresholds, or a verdict more than 64
        bits.

        overlays: {axis of `Place`: {label: other rules}}. of_lists: rules of lists, and whether
        they drop. They judge every document, whatever its source and language.
        """
        self._overlays = overlays
        lists = {rule.name: (rule, drops) for rule, drops in of_lists}
        places = map(Place._make, product(*((None, *overlays[axis]) for axis in Place._fields)))
        chosen = {place: self._choose(base, place) | lists for place in places}
        order = {name: i for i, name in enumerate(RULE_NAMES)}
        # Stable, so that limits and lists, which come last, keep their own order.
        names = sorted(
            dict.fromkeys(name for rules in chosen.values() for name in rules),
            key=lambda name: order.get(name, len(order)),
        )
        if len(names) > MAX_RULES:
            raise ConfigError(
                f"{len(names)} rules are chosen, and a verdict has {MAX_RULES} bits; choose fewer"
                " presets, limits or lists"
            )
        self.names = tuple(names)
        self._judgements = {
            place: tuple(
                Judgement(bit, *rules[name]) for bit, name in enumerate(names) if name in rules
            )
            for place, rules in chosen.items()
        }

    def judgements(
        self, source: str | None = None, language: str | None = None, kind: str | None = None
    ) -> tuple[Judgement, ...]:
        """The rules for documents of a source, a language and a kind, in the order of bits; without
        any, the rules of the run."""
        labels = zip(Place._fields, (source, language, kind), strict=True)
        known = (label if label in self._overlays[axis] else None for axis, label in labels)
        return self._judgements[Place._make(known)]

    def places(self) -> list[Place]:
        """Whom each set of rules is for, that of the run first."""
        return list(self._judgements)

    def _choose(self, choice: RuleOverlay, place: Place) -> dict[str, tuple[Rule, bool]]:
        where = ""
        for axis in ("language", "kind", "source"):  # the later one wins
            label = getattr(place, axis)
            if label is not None:
                choice = _lay_over(choice, self._overlays[axis][label])
                where = f" {axis} {label}{where}"
        return _rules_of(choice, f" for{where}" if where else "")


def judge(
    book: RuleBook,
    features: Mapping[str, np.ndarray],
    sources: np.ndarray,
    languages: np.ndarray,
    kinds: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts and drops, uint64 per document: bit i set where it breaks rule i of the book, and
    where rule i drops it.

    features: values per document; a NaN or masked value breaks no rule. sources, languages, kinds:
    labels per document.
    """
    verdicts, drops = np.zeros(len(languages), np.uint64), np.zeros(len(languages), np.uint64)
    segmented = features["unsegmented_frac"] < UNSEGMENTED_FROM
    # A word of Chinese or Japanese is about two letters.
    sentence_words = features["mean_sentence_words"] / np.where(segmented, 1, 2)
    fewest, most = LISTING_WORDS
    applies = {
        "all": np.ones(len(languages), bool),
        "segmented": segmented,
        "terminal": ~np.isin(languages.astype(str), WITHOUT_TERMINAL_PUNCTUATION),
        "lines": features["num_lines"] >= MIN_LINES,
        "listing": ~((sentence_words > fewest) & (sentence_words <= most)),
    }
    # One tuple per set of rules, so identity tells them apart.
    kinds = np.full(len(languages), None, object) if kinds is None else kinds
    labels = list(zip(sources, languages, kinds, strict=True))
    rules_by_label = {label: id(book.judgements(*label)) for label in set(labels)}
    rules_of = np.array([rules_by_label[label] for label in labels])
    for place in book.places():
        judgements = book.judgements(*place)
        mine = rules_of == id(judgements)
        if not mine.any():
            continue
        for judgement in judgements:
            rule = judgement.rule
            scopes = (applies[scope] for scope in rule.applies_to.split("_"))
            broken = np.logical_and.reduce([mine, *scopes, breaks(rule, features, languages)])
            bit = broken.astype(np.uint64) << np.uint64(judgement.bit)
            verdicts |= bit
            if judgement.drops:
                drops |= bit
    return verdicts, drops


def breaks(rule: Rule, features: Mapping[str, np.ndarray], languages: np.ndarray) -> np.ndarray:
    """Which documents are on the wrong side of the threshold, in the languages the rule knows."""
    values = features[rule.feature]
    if not rule.is_on:
        return np.zeros(len(values), bool)
    # NaN is the threshold of languages without one: no value is under or over it.
    threshold = np.full(len(values), np.nan if rule.threshold is None else rule.threshold)
    for language, cut in rule.cuts:
        threshold[languages == language] = cut
    broken = np.asarray(values < threshold if rule.side == "min" else values > threshold, bool)
    return broken & np.isin(languages.astype(str), rule.languages) if rule.languages else broken


def document_kind(
    metadata: str | None,
    source: str,
    by_kind: Collection[str],
    kind_of_source: Mapping[str, str],
    key: str | None,
) -> str | None:
    """The kind that a document is judged as: its own where `by_kind` knows it, else that of its
    source, else None.

    metadata: a JSON object, whose text under `key` is the document's own kind.
    """
    own = text_under(metadata, key) if by_kind else None
    return own if own in by_kind else kind_of_source.get(source)


def _lay_over(choice: RuleOverlay, overlay: RuleOverlay) -> RuleOverlay:
    # Thresholds were meant for the presets they were given with.
    own_presets = overlay.presets is not None
    return RuleOverlay(
        overlay.presets if own_presets else choice.presets,
        choice.record if overlay.record is None else overlay.record,
        overlay.thresholds if own_presets else choice.thresholds | overlay.thresholds,
        choice.limits | overlay.limits,
    )


def _rules_of(choice: RuleOverlay, where: str) -> dict[str, tuple[Rule, bool]]:
    """{name: (rule, drops)} of a choice, before bits are given."""
    rules: dict[str, tuple[Rule, bool]] = {}
    for names, drops in ((choice.presets or (), True), (choice.record or (), False)):
        for rule in (rule for name in names for rule in PRESETS[name]):
            if rule.name in choice.thresholds:
                rule = replace(rule, threshold=choice.thresholds[rule.name], cuts=())
            first, dropping = rules.setdefault(rule.name, (rule, drops))
            # The same question for several languages is one rule for all of them.
            if first.languages != rule.languages:
                both = tuple(dict.fromkeys((*first.languages, *rule.languages)))
                rules[rule.name] = (replace(first, languages=both), dropping)
            if (first.threshold, first.cuts) != (rule.threshold, rule.cuts):
                raise ConfigError(
                    f"{first.preset} and {rule.preset}{where} give {rule.name} two thresholds,"
                    f" {_numbers(first)} and {_numbers(rule)}; leave one of them out, or set"
                    f" thresholds.{rule.name}"
                )
    for feature, limit in choice.limits.items():
        name, cuts = feature.upper(), (limit.min_by_language, limit.max_by_language)
        bounds = [
            Rule(f"{name}_UNDER_MIN", "limits", feature, "min", limit.min),
            Rule(f"{name}_OVER_MAX", "limits", feature, "max", limit.max),
        ]
        found = [
            replace(rule, cuts=tuple(sorted(of_languages.items())))
            for rule, of_languages in zip(bounds, cuts, strict=True)
        ]
        if limit.pareto is not None:
            found.append(Rule(f"{name}_NOT_DRAWN", "limits", drawn_feature(feature), "min", 0.0))
        rules |= {
            rule.name: (replace(rule, languages=limit.languages), limit.drops)
            for rule in found
            if rule.is_on
        }
    return rules


def _numbers(rule: Rule) -> str:
    cuts = (f"{cut:g} for {language}" for language, cut in rule.cuts)
    return ", ".join([f"{rule.threshold:g}", *cuts])

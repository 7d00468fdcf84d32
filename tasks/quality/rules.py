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
import orjson

from llm_core.config import ConfigError
from tasks.quality.limits import RuleOverlay, drawn_feature
from tasks.quality.presets import PRESETS, RULE_NAMES, Rule

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
        by_language: Mapping[str, RuleOverlay],
        by_source: Mapping[str, RuleOverlay],
        of_lists: Sequence[tuple[Rule, bool]] = (),
        by_kind: Mapping[str, RuleOverlay] | None = None,
    ) -> None:
        """Raises ConfigError where a rule would need two thresholds, or a verdict more than 64
        bits.

        of_lists: rules of lists, and whether they drop. They judge every document, whatever its
        source and language.
        """
        self._base, self._by_language, self._by_source, self._by_kind = (
            base,
            by_language,
            by_source,
            by_kind or {},
        )
        self._of_lists = {rule.name: (rule, drops) for rule, drops in of_lists}
        axes = ((None, *by_source), (None, *by_language), (None, *self._by_kind))
        chosen = {Place(*place): self._choose(*place) for place in product(*axes)}
        known = {rule.name: rule for rules in chosen.values() for rule, _ in rules.values()}
        order = {name: i for i, name in enumerate(RULE_NAMES)}
        names = sorted(
            known, key=lambda name: order.get(name, len(order))
        )  # stable: limits stay in their own order
        if len(names) > MAX_RULES:
            raise ConfigError(
                f"{len(names)} rules are chosen, and a verdict has {MAX_RULES} bits; choose fewer"
                " presets, limits or lists"
            )
        self.names = tuple(names)
        bits = {name: bit for bit, name in enumerate(names)}
        self._judgements = {
            place: tuple(
                sorted(
                    (Judgement(bits[n], r, d) for n, (r, d) in rules.items()), key=lambda j: j.bit
                )
            )
            for place, rules in chosen.items()
        }

    def judgements(
        self, source: str | None = None, language: str | None = None, kind: str | None = None
    ) -> tuple[Judgement, ...]:
        """The rules for documents of a source, a language and a kind, in the order of bits; without
        any, the rules of the run."""
        known = zip(
            (source, language, kind),
            (self._by_source, self._by_language, self._by_kind),
            strict=True,
        )
        return self._judgements[
            Place(*(label if label in overlays else None for label, overlays in known))
        ]

    def places(self) -> list[Place]:
        """Whom each set of rules is for, that of the run first."""
        return list(self._judgements)

    def _choose(
        self, source: str | None, language: str | None, kind: str | None
    ) -> dict[str, tuple[Rule, bool]]:
        overlays = [self._by_language[language]] if language is not None else []
        overlays += [self._by_kind[kind]] if kind is not None else []
        overlays += [self._by_source[source]] if source is not None else []
        choice = self._base
        for overlay in overlays:
            choice = _lay_over(choice, overlay)
        labels = (("source", source), ("kind", kind), ("language", language))
        where = " ".join(f"{axis} {label}" for axis, label in labels if label is not None)
        return _rules_of(choice, f" for {where}" if where else "") | self._of_lists


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
    if not len(languages):
        return verdicts, drops
    applies = {
        "all": np.ones(len(languages), bool),
        "segmented": features["unsegmented_frac"] < UNSEGMENTED_FROM,
        "terminal": ~np.isin(languages.astype(str), WITHOUT_TERMINAL_PUNCTUATION),
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
            broken = (
                mine
                & applies[judgement.rule.applies_to]
                & breaks(judgement.rule, features, languages)
            )
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
    # A look at the text first: most documents say nothing, and parsing them all costs more than
    # judging.
    if by_kind and key is not None and metadata and key in metadata:
        own = orjson.loads(metadata).get(key)
        if isinstance(own, str) and own in by_kind:
            return own
    return kind_of_source.get(source)


def _lay_over(choice: RuleOverlay, overlay: RuleOverlay) -> RuleOverlay:
    thresholds = (
        overlay.thresholds
        if overlay.presets is not None
        else choice.thresholds | overlay.thresholds
    )
    return RuleOverlay(
        choice.presets if overlay.presets is None else overlay.presets,
        choice.record if overlay.record is None else overlay.record,
        thresholds,
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
        for side, bound, cuts in (
            ("min", limit.min, limit.min_by_language),
            ("max", limit.max, limit.max_by_language),
        ):
            if bound is not None or cuts:
                name = f"{feature.upper()}_{'UNDER_MIN' if side == 'min' else 'OVER_MAX'}"
                by_language = tuple(sorted(cuts.items()))
                rule = Rule(
                    name,
                    "limits",
                    feature,
                    side,  # type: ignore[arg-type]
                    bound,
                    languages=limit.languages,
                    cuts=by_language,
                )
                rules[name] = (rule, limit.drops)
        if limit.pareto is not None:
            name = f"{feature.upper()}_NOT_DRAWN"
            rules[name] = (
                Rule(name, "limits", drawn_feature(feature), "min", 0.0, languages=limit.languages),
                limit.drops,
            )
    return rules


def _numbers(rule: Rule) -> str:
    """The thresholds of a preset's rule in words."""
    return ", ".join(
        [f"{rule.threshold:g}", *(f"{cut:g} for {language}" for language, cut in rule.cuts)]
    )

"""Describes the rules of a run as plain values, and finds the number a document was held against.

A rule has an entry in `metrics["rules"]` of the quality artifact, and in its `elsewhere` one for
each source, language and kind of which it asks something else. Who has rules of their own the
configuration of the run says: `by_source` and similar settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.quality.rules import Place, RuleBook, document_kind


def describe_rule(book: RuleBook, bit: int, name: str) -> dict[str, Any]:
    """A rule as the run has it, and `elsewhere`: what it asks of sources, languages and kinds that
    have rules of their own."""
    found = {
        place: next((j for j in book.judgements(*place) if j.bit == bit), None)
        for place in book.places()
    }
    here = found[Place()]
    any_of = here or next(j for j in found.values() if j)
    rule = any_of.rule
    elsewhere = [
        {
            **place._asdict(),
            "preset": j.rule.preset if j else None,
            "threshold": j.rule.threshold if j else None,
            "cuts": dict(j.rule.cuts) if j else {},
            "drops": bool(j and j.drops and j.rule.is_on),
        }
        for place, j in found.items()
        if place != Place() and j != here
    ]
    return {
        "bit": bit,
        "name": name,
        "preset": rule.preset,
        "feature": rule.feature,
        "threshold": here.rule.threshold if here else None,
        "cuts": dict(here.rule.cuts) if here else {},
        "side": rule.side,
        "applies_to": ", ".join(rule.languages) or rule.applies_to,
        "drops": any(j.drops and j.rule.is_on for j in found.values() if j),
        "elsewhere": elsewhere,
    }


def rule_at(rule: Mapping[str, Any], config: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
    """What a rule of `metrics["rules"]` is to documents of a place: an entry of its `elsewhere`, or
    itself.

    config: that of the run, which says who has rules of their own.
    """
    named = place._asdict().items()
    own = (label if label in config.get(f"by_{axis}", {}) else None for axis, label in named)
    mine = Place._make(own)
    # Artifacts of earlier versions know no kinds.
    return next(
        (entry for entry in rule["elsewhere"] if tuple(map(entry.get, Place._fields)) == mine), rule
    )


def threshold_at(rule: Mapping[str, Any], config: Mapping[str, Any], place: Place) -> float | None:
    """The number that a rule holds documents of a place against; see `rule_at`."""
    here = rule_at(rule, config, place)
    found: float | None = (here.get("cuts") or {}).get(place.language, here["threshold"])
    return found


def place_of(config: Mapping[str, Any], source: str, language: str, metadata: str | None) -> Place:
    """Where a document stands by the plain configuration of a run."""
    kinds = (config.get("by_kind", {}), config.get("kind_of_source", {}), config.get("kind_key"))
    return Place(source, language, document_kind(metadata, source, *kinds))

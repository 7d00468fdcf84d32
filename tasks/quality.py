"""Which documents read like text worth learning from, by rules on their form?

Gopher's quality and repetition rules, FineWeb's, and the parts of C4 that speak of whole documents (tasks.quality_rules), on
measures made by one kernel call per part (tasks.kernels.features). Every rule is evaluated on every document and nothing exits
early: the sidecar holds all measures and one bit per broken rule, so another choice of rules or thresholds can be judged
without reading a text again.

In: id, text; language (some rules know only some languages). Out: a sidecar `id`, one column per feature, `verdict` uint64 (bit
i: rule i of metrics["rules"] is broken), `kept` (none of the rules in `drop` is). A dropped document counts for the first of its
rules.
Deterministic and independent of parts: a document's row depends on its text and label alone.
Leaves out: models of quality, word lists, thresholds by language (FineWeb-2 has them for some thousand).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError, nearest
from tasks.artifact import Artifact, check_accounting
from tasks.documentset import (
    SIDECAR_FILE,
    check_aligned,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    text_buffers,
    write_table,
)
from tasks.parts import Part, RunParts, serial
from tasks.quality_rules import PRESETS, RULES, Rule, judge, rules_with
from tasks.stage import StageFailure


@dataclass(frozen=True)
class QualityConfig:
    """Which rules drop documents, and at which thresholds."""

    drop: tuple[str, ...] = ("gopher_quality", "gopher_repetition", "fineweb")
    """Presets, or single rules by name, that drop documents; the other rules are measured and recorded only."""

    thresholds: dict[str, float | None] = field(default_factory=dict)
    """Thresholds by rule where they differ from the published ones; null switches a rule off."""

    def __post_init__(self) -> None:
        names = [rule.name for rule in RULES]
        for name in self.drop:
            if name not in names and name not in PRESETS:
                raise ConfigError(f"drop names {name}, which is no preset and no rule; {nearest(name, [*PRESETS, *names])}")
        for name in self.thresholds:
            if name not in names:
                raise ConfigError(f"thresholds names {name}, which is no rule; {nearest(name, names)}")

    def drops(self, rule: Rule) -> bool:
        return rule.threshold is not None and (rule.preset in self.drop or rule.name in self.drop)


def filter_quality(
    ingest: Artifact, language: Artifact, out_dir: Path, config: QualityConfig, run_parts: RunParts = serial
) -> Artifact:
    """Measure every document and keep those that break none of the dropping rules. Raises StageFailure where none is left."""
    results = run_parts(_judge_part, document_parts(ingest, language=language), config, out_dir)
    link_sidecars(results, out_dir)
    totals = sum_counters([result.counters for result in results])
    counters = {
        "read": totals.get("read", 0),
        "kept": totals.get("kept", 0),
        "dropped": totals.get("dropped", {}),
        "quarantined": 0,
    }
    check_accounting("quality", counters)
    if not counters["kept"]:
        raise StageFailure(_nothing_left(counters))
    rules = rules_with(config.thresholds)
    return Artifact(out_dir, "quality", counters, _metrics(rules, config, totals))


def _judge_part(part: Part, directory: Path, config: QualityConfig) -> Mapping[str, Any]:
    documents = read_table(part.payload["documents"], ["id", "text"])
    labels = read_table(part.payload["language"], ["id", "language"])
    check_aligned(documents, labels, "the language sidecar")
    features = measure_features(documents["text"])
    languages = np.asarray(labels["language"].to_pylist(), dtype=object)
    rules = rules_with(config.thresholds)
    verdicts = judge(rules, features, languages)
    dropping = sum(1 << bit for bit, rule in enumerate(rules) if config.drops(rule))
    kept = (verdicts & np.uint64(dropping)) == 0
    num_bytes = pc.binary_length(documents["text"]).cast(pa.int64())
    columns = {"id": documents["id"], "num_bytes": num_bytes, **features, "verdict": verdicts, "kept": kept}
    write_table(
        pa.table({name: pa.array(c) if isinstance(c, np.ndarray) else c for name, c in columns.items()}), directory / SIDECAR_FILE
    )
    return _count(rules, config, verdicts, kept, languages)


def measure_features(texts: pa.ChunkedArray | pa.Array) -> dict[str, np.ndarray]:
    """{feature: values} of a column of texts, counts as int64 and ratios as float64."""
    from tasks.kernels.features import COUNTS, FEATURES, measure_texts

    rows = measure_texts(*text_buffers(texts))
    return {name: rows[:, i].astype(np.int64) if name in COUNTS else rows[:, i].copy() for i, name in enumerate(FEATURES)}


def _count(
    rules: Sequence[Rule], config: QualityConfig, verdicts: np.ndarray, kept: np.ndarray, languages: np.ndarray
) -> dict[str, Any]:
    broken = np.stack([(verdicts >> np.uint64(bit)) & np.uint64(1) for bit in range(len(rules))]).astype(np.int64)
    first: dict[str, int] = {}
    left = ~kept
    for bit, rule in enumerate(rules):
        if config.drops(rule):
            mine = left & (broken[bit] == 1)
            left &= ~mine
            if mine.any():
                first[rule.name] = int(mine.sum())
    names, counts = np.unique(languages[~kept].astype(str), return_counts=True)
    together = broken @ broken.T
    return {
        "read": len(kept),
        "kept": int(kept.sum()),
        "dropped": first,
        "overlap": {a.name: {b.name: int(together[i, j]) for j, b in enumerate(rules)} for i, a in enumerate(rules)},
        "dropped_by_language": dict(zip(names.tolist(), counts.tolist(), strict=True)),
    }


def _metrics(rules: Sequence[Rule], config: QualityConfig, totals: Mapping[str, Any]) -> dict[str, Any]:
    overlap, first = totals["overlap"], totals["dropped"]
    return {
        "rules": [
            {
                "bit": bit,
                "name": rule.name,
                "preset": rule.preset,
                "feature": rule.feature,
                "threshold": rule.threshold,
                "side": rule.side,
                "applies_to": rule.applies_to,
                "drops": config.drops(rule),
            }
            for bit, rule in enumerate(rules)
        ],
        "funnel": [
            {"rule": r.name, "dropped": overlap[r.name][r.name], "dropped_first": first.get(r.name, 0)}
            for r in rules
            if config.drops(r)
        ],
        "overlap": [[overlap[a.name][b.name] for b in rules] for a in rules],
        "dropped_by_language": totals["dropped_by_language"],
    }


def _nothing_left(counters: Mapping[str, Any]) -> str:
    if not counters["read"]:
        return "quality read no documents; check what ingest found"
    worst = sorted(counters["dropped"].items(), key=lambda item: (-item[1], item[0]))[:3]
    reasons = ", ".join(f"{name} {count}" for name, count in worst)
    way_out = f"try quality=lenient, or ++quality.thresholds.{worst[0][0]}=null"
    return f"quality dropped all {counters['read']} documents, most for {reasons}; {way_out}"

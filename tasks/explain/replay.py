"""Compares the verdicts of quality with those of other rules, from the stored features alone.

The sidecars of quality hold every feature of every document. One query over them
(`tasks.explain.replay_query`) gives each document the first rule of the new rule book that drops
it, as `tasks.quality.rules.judge` would, and counts documents and bytes by the reason of the run
and the new one, by source and language, with some that change: which they are, the rule that
decides, and what it measured. Their texts are not shown; `textmill explain ID` does.

In: quality's sidecars (`id, num_bytes, drops, kept` and the features the new rules look at),
`language`, and `source` of the documents. Cost: seconds for ten million documents, memory of the
groups. Left out: what dedup would make of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from llm_core.config import ConfigError, to_plain
from tasks.corpus.documentset import document_parts, read_row
from tasks.explain.replay_query import NUM_SAMPLES, kind_expression, reason_expression, replay_query
from tasks.quality.config import QualityConfig
from tasks.quality.described_rules import place_of, threshold_at
from tasks.quality.score_limits import check_scores, resolve_limits
from tasks.runtime.artifact import Artifact, ArtifactMismatch, digest_file
from tasks.runtime.keys import key_config


@dataclass
class Count:
    """Documents and bytes that were kept, that would be, and that change either way."""

    kept_before: int = 0
    kept_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    newly_dropped: int = 0
    newly_kept: int = 0


@dataclass(frozen=True)
class Sample:
    """A document whose verdict changes, and the first rule that drops it: the new one where it
    would go, else the old one."""

    id: str
    """In hex."""
    source: str
    source_id: str | None
    language: str
    rule: str
    feature: str
    value: float
    side: str
    threshold: float | None


@dataclass
class Replay:
    """How the verdict changes, in all and by label."""

    total: Count = field(default_factory=Count)
    by_source: dict[str, Count] = field(default_factory=dict)
    by_language: dict[str, Count] = field(default_factory=dict)
    reasons: dict[str, tuple[int, int]] = field(default_factory=dict)
    """{rule: documents dropped for it first, before and after}."""
    newly_dropped: list[Sample] = field(default_factory=list)
    newly_kept: list[Sample] = field(default_factory=list)


def replay_quality(
    ingest: Artifact, language: Artifact, scores: Artifact, quality: Artifact, config: QualityConfig
) -> Replay:
    """Compare the verdicts in `quality` with those that `config` would give.

    Raises ConfigError where a rule looks at a feature that was not measured, ArtifactMismatch for
    an older artifact.
    """
    import duckdb

    files = quality.files("part-*.parquet")
    fields = {field.name: str(field.type) for field in pq.read_schema(files[0])}
    if "drops" not in fields or "num_bytes" not in fields:
        raise ArtifactMismatch(
            f"the quality artifact {quality.path} is of an older version; rebuild it with"
            " force=[quality]"
        )
    check_scores(config, list(scores.metrics["scores"]))
    _check_lists(quality, config)
    for name, limit in config.limits.items():
        if limit.spare_frac:
            raise ConfigError(
                f"quality.limits.{name}.spare_frac is drawn when documents are judged; replay"
                " without it, or run the stage"
            )
    book = resolve_limits(
        config, scores, document_parts(ingest, language=language, scores=scores)
    ).rule_book()
    query = replay_query(
        [str(f) for f in files],
        [str(language.file(f.name)) for f in files],
        [str(ingest.file(f"documents/{f.name}")) for f in files],
        reason_expression(book, fields),
        kind_expression(config),
    )
    with duckdb.connect() as connection:
        rows = connection.execute(query).fetchall()
    before = {str(rule["name"]): rule for rule in quality.metrics["rules"]}
    result, dropped, kept = _summarize(rows, list(before))
    for chosen in dropped:
        document = _document(chosen, ingest)
        place = place_of(to_plain(config), chosen.source, chosen.language, document["metadata"])
        rule = next(j.rule for j in book.judgements(*place) if j.rule.name == chosen.reason)
        threshold = dict(rule.cuts).get(chosen.language, rule.threshold)
        result.newly_dropped.append(_sample(chosen, document, rule.feature, rule.side, threshold))
    for chosen in kept:
        document, old = _document(chosen, ingest), before[chosen.reason]
        place = place_of(quality.config, chosen.source, chosen.language, document["metadata"])
        threshold = threshold_at(old, quality.config, place)
        result.newly_kept.append(_sample(chosen, document, old["feature"], old["side"], threshold))
    return result


class _Chosen(NamedTuple):
    """A document that is shown, in the order of ids: the row of a quality sidecar, and why it goes
    or went."""

    id: bytes
    reason: str
    source: str
    language: str
    file: str
    row: int


def _document(chosen: _Chosen, ingest: Artifact) -> dict[str, Any]:
    file = ingest.file(f"documents/{Path(chosen.file).name}")
    return read_row(file, chosen.row, ["id", "source_id", "metadata"])


def _sample(
    chosen: _Chosen, document: Mapping[str, Any], feature: str, side: str, threshold: float | None
) -> Sample:
    value = read_row(Path(chosen.file), chosen.row, ["id", feature])
    assert document["id"] == value["id"] == chosen.id, "sidecars have the rows of the documents"
    place = (chosen.source, document["source_id"], chosen.language)
    return Sample(chosen.id.hex(), *place, chosen.reason, feature, value[feature], side, threshold)


def _check_lists(quality: Artifact, config: QualityConfig) -> None:
    """Raise ConfigError where lists hold something else than those whose hits are stored."""
    if not quality.record:
        return  # never published, so nobody knows of its lists
    found = {f"keywords.{name}": one for name, one in quality.config.get("keywords", {}).items()}
    found["urls"] = quality.config.get("urls", {})
    files = quality.record["identity"].get("inputs", {})
    own_files = {name: digest_file(path) for name, path in config.input_files().items()}
    wanted = json.loads(json.dumps(key_config(config)))
    asked = {f"keywords.{name}": one for name, one in wanted["keywords"].items()}
    asked |= {"urls": wanted["urls"]} if config.urls.finds else {}
    for place, one in asked.items():
        under = place.replace(".", "/") + "/"
        if _contents(found.get(place, {}), files, under) != _contents(one, own_files, under):
            raise ConfigError(
                f"quality.{place} is not the list whose hits this run has stored; look for others"
                " with a new run"
            )


def _contents(
    settings: Mapping[str, Any], files: Mapping[str, str], under: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """What decides the hits of a list, in plain values: settings, and digests of its files."""
    judging = ("action", "max_hits", "drops")
    return (
        {name: value for name, value in settings.items() if name not in judging},
        {name: digest for name, digest in files.items() if name.startswith(under)},
    )


def _summarize(
    rows: Sequence[Sequence[Any]], names: Sequence[str]
) -> tuple[Replay, list[_Chosen], list[_Chosen]]:
    """The counts, and some documents that would go and that would come back."""
    result, before, after = Replay(), Counter[str](), Counter[str]()
    dropped: list[_Chosen] = []
    kept: list[_Chosen] = []
    for source, language, old_bit, new_reason, documents, num_bytes, samples in rows:
        # Bit k belongs to rule k of the run.
        old_reason = None if old_bit is None else names[int(old_bit).bit_length() - 1]
        if old_reason is not None:
            before[old_reason] += documents
        if new_reason is not None:
            after[new_reason] += documents
        for count in (
            result.total,
            result.by_source.setdefault(str(source), Count()),
            result.by_language.setdefault(str(language), Count()),
        ):
            if old_reason is None:
                count.kept_before += documents
                count.bytes_before += int(num_bytes)
                count.newly_dropped += documents if new_reason is not None else 0
            if new_reason is None:
                count.kept_after += documents
                count.bytes_after += int(num_bytes)
                count.newly_kept += documents if old_reason is not None else 0
        changed = kept if new_reason is None else dropped
        reason = str(old_reason if new_reason is None else new_reason)
        for one in samples or ():
            labels = (reason, str(source), str(language))
            changed.append(_Chosen(bytes(one["id"]), *labels, one["file"], one["row"]))
    order = [*names, *sorted(set(after) - set(names))]
    result.reasons = {n: (before[n], after[n]) for n in order if n in before or n in after}
    return result, sorted(dropped)[:NUM_SAMPLES], sorted(kept)[:NUM_SAMPLES]

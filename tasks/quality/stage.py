"""Which documents read like text worth learning from, by rules on their form?

Published collections of rules by name (tasks.quality.presets) and limits of one's own, chosen per
run, source, kind and language (tasks.quality.rules), on measures made by one kernel call per part
(tasks.kernels.quality.features). Every rule is evaluated on every document and nothing exits early:
the sidecar holds all measures and one bit per broken rule, so another choice of rules or thresholds
can be judged without reading a text again. Lists of keywords (tasks.quality.keywords) and rules on
URLs (tasks.quality.url_rules) are features and rules too.

In: id, text, source, url, metadata; language; scores, features like others
(`tasks.quality.score_limits`). Out: a sidecar `id`, `num_bytes`, one column per feature, list and
score, `verdict` uint64 (bit i: rule i of metrics["rules"] is broken), `drops` uint64 (those of the
broken rules that drop this document), `kept` (there are none); `masks` where a list of keywords
masks; `cuts` where lines go (`tasks.quality.c4_lines`); `bucket` where a score parts documents
(`tasks.quality.buckets`). A dropped document counts for the first of its rules. Deterministic and
independent of parts but for shares of scores, which are of all documents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError, nearest, to_plain
from llm_core.printing import get_logger
from tasks.corpus.documentset import (
    SIDECAR_FILE,
    check_aligned,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    text_buffers,
    write_table,
)
from tasks.corpus.language_labels import check_label
from tasks.corpus.listfiles import check_list_files
from tasks.corpus.named_labels import NAMES_LANGUAGES, NAMES_SOURCES
from tasks.corpus.score_labels import DIMENSIONS, LABELS_FOLDER, NONE
from tasks.corpus.tally import OTHER, largest
from tasks.definitions.features import COUNTS, FEATURES
from tasks.quality.buckets import BucketConfig, bucket_of, count_buckets, resolve_buckets
from tasks.quality.c4_lines import LineCutsConfig, count_line_cuts, cut_lines
from tasks.quality.described_rules import describe_rule
from tasks.quality.fineweb2 import FINEWEB2
from tasks.quality.keywords import (
    KeywordList,
    check_keywords,
    count_keywords,
    find_keywords,
    keyword_feature,
    keyword_files,
    keyword_rules,
)
from tasks.quality.rules import (
    UNSEGMENTED_FROM,
    Limit,
    RuleBook,
    RuleOverlay,
    check_names,
    document_kind,
    judge,
)
from tasks.quality.score_limits import check_scores, judged_scores, limited_scores, resolve_limits
from tasks.quality.url_rules import (
    UrlRules,
    check_entries,
    check_url_files,
    count_urls,
    find_urls,
    odd_entries,
    url_files,
    url_rules,
)
from tasks.runtime.artifact import Artifact, check_accounting, digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, serial
from tasks.runtime.stage import StageFailure

logger = get_logger("tasks.quality.stage")


@dataclass(frozen=True)
class QualityConfig:
    """Which rules judge which documents, and which of them drop."""

    presets: tuple[str, ...] = ("gopher", "fineweb_code")
    """Presets of rules that drop documents: `gopher`, `fineweb_code`, `fineweb_paper`, `c4_paper`
    and `fineweb2/LANGUAGE`."""

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
                hint = (
                    nearest(kind, list(self.by_kind))
                    if self.by_kind
                    else "take quality=by_kind, or write some"
                )
                raise ConfigError(
                    f"kind_of_source.{source} is {kind}, which has no rules in by_kind; {hint}"
                )
        self.rule_book()

    def rule_book(self) -> RuleBook:
        """Raises ConfigError where the chosen rules contradict each other."""
        base = RuleOverlay(self.presets, self.record, self.thresholds, self.limits)
        of_lists = [*url_rules(self.urls), *keyword_rules(self.keywords)]
        return RuleBook(base, self.by_language, self.by_source, of_lists, self.by_kind)

    def overlays(self) -> dict[str, RuleOverlay]:
        """{by_AXIS.LABEL: what it lays over the rules of the run}."""
        axes = {
            "by_language": self.by_language,
            "by_kind": self.by_kind,
            "by_source": self.by_source,
        }
        return {
            f"{axis}.{label}": overlay
            for axis, overlays in axes.items()
            for label, overlay in overlays.items()
        }

    def list_features(self) -> tuple[str, ...]:
        """Columns of what lists find."""
        return (*self.urls.finds, *map(keyword_feature, self.keywords))

    def input_files(self) -> dict[str, Path]:
        """Files of lists, whose contents are part of the key. Raises ConfigError where one is not
        there, and for entries in the configuration that mean nothing: those in files are looked at
        when they are read."""
        files = keyword_files(self.keywords) | url_files(self.urls)
        for name, path in files.items():
            setting = name.rpartition("/")[0].replace("/", ".") + ".files" * name.startswith(
                "keywords/"
            )
            check_list_files(f"quality.{setting}", (path,))
        check_entries(self.urls)
        check_url_files(self.urls)
        return files


def filter_quality(
    ingest: Artifact,
    language: Artifact,
    scores: Artifact,
    out_dir: Path,
    config: QualityConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Measure every document and keep those that break none of the dropping rules.

    Raises StageFailure where none is left, ConfigError for a limit on no feature and no score.
    """
    check_scores(config, list(scores.metrics["scores"]))
    parts = document_parts(ingest, language=language, scores=scores)
    config = resolve_limits(config, scores, parts)
    # What is cut at depends on all parts: a part judged by other bounds is another one.
    bounds = digest({name: to_plain(limit) for name, limit in config.limits.items()})
    labels = {
        part.name: str(scores.file(f"{LABELS_FOLDER}/{part.name}"))
        for part in parts
        if limited_scores(config)
    }
    buckets = resolve_buckets(config.buckets, scores, parts)
    lists = digest({name: digest_file(path) for name, path in config.input_files().items()})
    parts = [
        Part(
            p.name,
            digest({"part": p.digest, "limits": bounds, "lists": lists, "buckets": buckets}),
            {**p.payload, "labels": labels.get(p.name), "lists": lists, "buckets": buckets},
        )
        for p in parts
    ]
    odd = odd_entries(config.urls, lists)
    if odd:
        shown = ", ".join(
            f"{name.removeprefix('urls/folders/')} {count:,}"
            for name, count in sorted(odd.items())[:5]
        )
        logger.warning(
            "quality.urls.folders: %s entries mean nothing and are passed over: %s",
            f"{sum(odd.values()):,}",
            shown,
        )
    results = run_parts(_judge_part, parts, config, out_dir)
    link_sidecars(results, out_dir)
    totals = sum_counters([result.counters for result in results])
    counters = {
        "read": totals.get("read", 0),
        "kept": totals.get("kept", 0),
        "dropped": totals.get("dropped", {}),
        "quarantined": 0,
    }
    check_accounting("quality", counters)
    sources = totals.get("by_source", {})
    for name in sorted(config.by_source.keys() - sources.keys()):
        # Where a column of the records names the sources, nobody knew them before.
        logger.warning(
            "quality.by_source names %s, which no document has; there are: %s", name, _some(sources)
        )
    if not counters["kept"]:
        raise StageFailure(_nothing_left(counters))
    metrics = _metrics(config.rule_book(), totals) | {
        name: totals[name] for name in ("urls", "keywords", "line_cuts") if name in totals
    }
    if buckets:
        metrics["buckets"] = {**buckets, "by_language": totals["buckets"]}
    return Artifact(
        out_dir,
        "quality",
        counters,
        metrics | ({"odd_list_entries": odd} if config.urls.folders else {}),
    )


def _judge_part(part: Part, directory: Path, config: QualityConfig) -> Mapping[str, Any]:
    documents = read_table(
        part.payload["documents"],
        ["id", "text", "source", "url", *(["metadata"] if config.by_kind else [])],
    )
    labels, scores = (
        read_table(part.payload["language"], ["id", "language"]),
        read_table(part.payload["scores"]),
    )
    check_aligned(documents, labels, "the language sidecar")
    check_aligned(documents, scores, "the scores sidecar")
    languages = np.asarray(labels["language"].to_pylist(), dtype=object)
    hits, masks = find_keywords(
        config.keywords, part.payload["lists"], documents["text"], languages
    )
    url_hits = find_urls(config.urls, part.payload["lists"], documents["url"])
    features = measure_features(documents["text"], languages) | url_hits | hits
    sources = np.asarray(documents["source"].to_pylist(), dtype=object)
    book = config.rule_book()
    score_columns, judged = judged_scores(documents["id"].to_pylist(), scores, config)
    kinds = np.full(len(sources), None, object)
    if config.by_kind:
        named = (config.by_kind, config.kind_of_source, config.kind_key)
        places = zip(documents["metadata"].to_pylist(), sources, strict=True)
        kinds[:] = [document_kind(metadata, source, *named) for metadata, source in places]
    verdicts, drops = judge(book, features | judged, sources, languages, kinds)
    num_bytes = pc.binary_length(documents["text"]).cast(pa.int64())
    measured = {"num_bytes": num_bytes, **features, **score_columns}
    columns = {
        "id": documents["id"],
        **measured,
        "verdict": verdicts,
        "drops": drops,
        "kept": drops == 0,
    }
    if masks is not None:
        columns["masks"] = masks
    line_cuts = None
    if config.line_cuts.rules != "none":
        wanted = np.isin(languages.astype(str), config.line_cuts.languages) | (
            not config.line_cuts.languages
        )
        wanted &= features["unsegmented_frac"] < UNSEGMENTED_FROM
        line_cuts = cut_lines(documents["text"], wanted, config.line_cuts.rules)
        columns["cuts"] = line_cuts
    if buckets := part.payload["buckets"]:
        values = scores[buckets["score"]].to_numpy(zero_copy_only=False).astype(np.float64)
        columns["bucket"] = bucket_of(buckets, values, languages)
    write_table(
        pa.table(
            {name: pa.array(c) if isinstance(c, np.ndarray) else c for name, c in columns.items()}
        ),
        directory / SIDECAR_FILE,
    )
    labels_of = {"source": sources, "language": languages}
    if config.by_kind:
        labels_of["kind"] = np.array([kind or NONE for kind in kinds], object)
    counts = _count(book, verdicts, drops, labels_of)
    if buckets:
        counts["buckets"] = count_buckets(columns["bucket"], num_bytes.to_numpy(), languages)
    if line_cuts is not None:
        counts["line_cuts"] = count_line_cuts(line_cuts, drops == 0)
    if config.keywords:
        counts["keywords"] = count_keywords(config.keywords, hits)
    if url_hits:
        counts["urls"] = count_urls(url_hits)
    if part.payload["labels"]:
        counts["score_rules"] = _count_by_label(
            book, verdicts, judged, read_table(part.payload["labels"])
        )
    return counts


def measure_features(
    texts: pa.ChunkedArray | pa.Array, languages: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """{feature: values} of a column of texts, counts as int64 and ratios as float64.

    languages: labels, which choose the list of stop words; without them, or without a list, English
    ones are counted.
    """
    from tasks.kernels.quality.features import STOP_WORDS, measure_texts

    listed = [language for language, limits in FINEWEB2.items() if limits.stop_words]
    numbers = {language: i for i, language in enumerate(listed, start=1)}
    lists = (
        None
        if languages is None
        else np.array([numbers.get(language, 0) for language in languages], np.int64)
    )
    rows = measure_texts(
        *text_buffers(texts),
        [STOP_WORDS, *(FINEWEB2[language].stop_words for language in listed)],
        lists,
    )
    return {
        name: rows[:, i].astype(np.int64) if name in COUNTS else rows[:, i].copy()
        for i, name in enumerate(FEATURES)
    }


def _count(
    book: RuleBook, verdicts: np.ndarray, drops: np.ndarray, labels_of: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    bits = np.arange(len(book.names), dtype=np.uint64)[:, None]
    broken = ((verdicts >> bits) & np.uint64(1)).astype(np.int64)
    dropped = drops != 0
    # The lowest bit set is the first rule.
    reasons = (
        np.bitwise_count((drops & -drops) - np.uint64(1))[dropped].astype(np.int64)
        if dropped.any()
        else np.zeros(0, np.int64)
    )
    first = np.bincount(reasons, minlength=len(book.names)).tolist()
    together = broken @ broken.T
    return {
        "read": len(verdicts),
        "kept": int((~dropped).sum()),
        "dropped": {name: count for name, count in zip(book.names, first, strict=True) if count},
        "hits": {
            name: int(((drops >> np.uint64(bit)) & np.uint64(1)).sum())
            for bit, name in enumerate(book.names)
        },
        "overlap": {
            a: {b: int(together[i, j]) for j, b in enumerate(book.names)}
            for i, a in enumerate(book.names)
        },
        **{
            f"by_{axis}": _drop_table(book, labels, dropped, reasons)
            for axis, labels in labels_of.items()
        },
    }


def _count_by_label(
    book: RuleBook, verdicts: np.ndarray, judged: Mapping[str, np.ndarray], labels: pa.Table
) -> dict[str, Any]:
    """{rule on a score: {dimension: {label: documents and bytes, scored and broken}}}, whatever
    other rules say."""
    features = {
        j.rule.name: j.rule.feature for place in book.places() for j in book.judgements(*place)
    }
    sizes = labels["bytes"].to_numpy()
    counts: dict[str, Any] = {}
    for bit, name in enumerate(book.names):
        if features[name] not in judged:
            continue
        broken = ((verdicts >> np.uint64(bit)) & np.uint64(1)).astype(np.int64)
        scored = ~np.isnan(judged[features[name]])
        counts[name] = {}
        for dimension in DIMENSIONS:
            values, places = np.unique(
                np.array(labels[dimension].to_pylist(), object).astype(str), return_inverse=True
            )
            table = {
                "documents": np.bincount(places),
                "bytes": np.bincount(places, sizes),
                "scored": np.bincount(places, scored),
            }
            table |= {
                "removed": np.bincount(places, broken),
                "removed_bytes": np.bincount(places, broken * sizes),
            }
            counts[name][dimension] = {
                str(value): {column: int(numbers[i]) for column, numbers in table.items()}
                for i, value in enumerate(values)
            }
    return counts


def _drop_table(
    book: RuleBook, labels: np.ndarray, dropped: np.ndarray, reasons: np.ndarray
) -> dict[str, Any]:
    """{label: {read, kept, dropped {REASON: n}}}; reasons are those of the dropped documents, in
    order."""
    values, places = np.unique(labels.astype(str), return_inverse=True)
    size, rules = len(values), len(book.names)
    read, kept = (
        np.bincount(places, minlength=size).tolist(),
        np.bincount(places[~dropped], minlength=size).tolist(),
    )
    counts = (
        np.bincount(places[dropped] * rules + reasons, minlength=size * rules)
        .reshape(size, rules)
        .tolist()
    )
    return {
        str(label): {
            "read": read[i],
            "kept": kept[i],
            "dropped": {
                name: count for name, count in zip(book.names, counts[i], strict=True) if count
            },
        }
        for i, label in enumerate(values)
    }


def _metrics(book: RuleBook, totals: Mapping[str, Any]) -> dict[str, Any]:
    overlap, first = totals["overlap"], totals["dropped"]
    rules = [describe_rule(book, bit, name) for bit, name in enumerate(book.names)]
    return {
        "rules": rules,
        "funnel": [
            {
                "rule": rule["name"],
                "dropped": totals["hits"][rule["name"]],
                "dropped_first": first.get(rule["name"], 0),
            }
            for rule in rules
            if rule["drops"]
        ],
        "overlap": [[overlap[a][b] for b in book.names] for a in book.names],
        "by_source": _largest(totals["by_source"]),
        "by_language": _largest(totals["by_language"]),
        **({"by_kind": totals["by_kind"]} if "by_kind" in totals else {}),
        "dropped_by_language": {
            label: row["read"] - row["kept"]
            for label, row in totals["by_language"].items()
            if row["read"] > row["kept"]
        },
        "score_rules": {
            rule: {dimension: largest(table) for dimension, table in tables.items()}
            for rule, tables in totals.get("score_rules", {}).items()
        },
    }


def _largest(table: Mapping[str, Any]) -> dict[str, Any]:
    """The labels with most documents; the rest, and labels that are no names, as `(other)`."""
    shown = largest(
        {label: {"documents": row["read"], "bytes": row["read"]} for label, row in table.items()}
    )
    rest = [row for label, row in table.items() if label not in shown]
    return {label: table[label] for label in shown if label in table} | (
        {OTHER: sum_counters(rest)} if rest else {}
    )


def _some(labels: Collection[str]) -> str:
    return ", ".join(sorted(labels)[:10]) + ("…" if len(labels) > 10 else "")


def _nothing_left(counters: Mapping[str, Any]) -> str:
    if not counters["read"]:
        return "quality read no documents; check what ingest found"
    worst = sorted(counters["dropped"].items(), key=lambda item: (-item[1], item[0]))[:3]
    reasons = ", ".join(f"{name} {count}" for name, count in worst)
    way_out = f"try quality=lenient, or ++quality.thresholds.{worst[0][0]}=null"
    return f"quality dropped all {counters['read']} documents, most for {reasons}; {way_out}"

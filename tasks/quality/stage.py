"""Keeps documents that read like text worth learning from, by rules on their form.

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
masks; `cuts` where lines go (`tasks.quality.c4_lines`); `bucket` where a score splits documents
(`tasks.quality.buckets`). A dropped document counts for the first of its rules. Deterministic and
independent of parts but for shares of scores, which are of all documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import to_plain
from llm_core.printing import get_logger
from tasks.corpus.documentset import (
    SIDECAR_FILE,
    check_aligned,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    write_table,
)
from tasks.corpus.language_labels import OTHER_LANGUAGE
from tasks.corpus.score_labels import LABELS_FOLDER, NONE
from tasks.quality.buckets import bucket_of, count_buckets, resolve_buckets
from tasks.quality.c4_lines import count_line_cuts, cut_lines
from tasks.quality.config import QualityConfig
from tasks.quality.counting import count_by_label, count_part, summarize
from tasks.quality.keywords import count_keywords, find_keywords
from tasks.quality.measures import measure_features
from tasks.quality.rules import UNSEGMENTED_FROM, document_kind, judge
from tasks.quality.score_limits import (
    check_scores,
    check_windows,
    judged_scores,
    limited_scores,
    resolve_limits,
)
from tasks.quality.url_rules import find_urls, odd_entries
from tasks.runtime.artifact import Artifact, check_accounting, digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, serial
from tasks.runtime.stage import StageFailure

logger = get_logger("tasks.quality.stage")


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
    check_windows(config, language.metrics.get("windows", 1))
    parts = document_parts(ingest, language=language, scores=scores)
    config = resolve_limits(config, scores, parts)
    # What is cut at depends on all parts: a part judged by other bounds is another one.
    bounds = digest({name: to_plain(limit) for name, limit in config.limits.items()})
    buckets = resolve_buckets(config.buckets, scores, parts)
    lists = digest({name: digest_file(path) for name, path in config.input_files().items()})
    # Only limits on scores are counted by label.
    with_labels = bool(limited_scores(config))
    judged = []
    for part in parts:
        key = {"part": part.digest, "limits": bounds, "lists": lists, "buckets": buckets}
        labels = str(scores.file(f"{LABELS_FOLDER}/{part.name}")) if with_labels else None
        payload = {**part.payload, "labels": labels, "lists": lists, "buckets": buckets}
        judged.append(Part(part.name, digest(key), payload))
    odd = odd_entries(config.urls, lists)
    if odd:
        some = sorted(odd.items())[:5]
        logger.warning(
            "quality.urls.folders: skipped %s entries that are neither a domain nor a URL: %s",
            f"{sum(odd.values()):,}",
            ", ".join(f"{name.removeprefix('urls/folders/')} {count:,}" for name, count in some),
        )
    results = run_parts(_judge_part, judged, config, out_dir)
    link_sidecars(results, out_dir)
    totals = sum_counters(result.counters for result in results)
    counters = {name: totals.get(name, 0) for name in ("read", "kept")}
    counters |= {"dropped": totals.get("dropped", {}), "quarantined": 0}
    check_accounting("quality", counters)
    sources = totals.get("by_source", {})
    for name in sorted(config.by_source.keys() - sources.keys()):
        # Sources that a column of the records names are known only now.
        logger.warning(
            "quality.by_source names %s, which no document has; the sources are: %s",
            name,
            ", ".join(sorted(sources)[:10]) + ("…" if len(sources) > 10 else ""),
        )
    if not counters["kept"]:
        raise StageFailure(_nothing_left(counters))
    metrics = summarize(config.rule_book(), totals) | {
        name: totals[name] for name in ("urls", "keywords", "line_cuts") if name in totals
    }
    if buckets:
        metrics["buckets"] = {**buckets, "by_language": totals["buckets"]}
    if config.urls.folders:
        metrics["odd_list_entries"] = odd
    return Artifact(out_dir, "quality", counters, metrics)


def _judge_part(part: Part, directory: Path, config: QualityConfig) -> Mapping[str, Any]:
    documents = read_table(
        part.payload["documents"],
        ["id", "text", "source", "url", *(["metadata"] if config.by_kind else [])],
    )
    labels = read_table(part.payload["language"])
    scores = read_table(part.payload["scores"])
    check_aligned(documents, labels, "the language sidecar")
    check_aligned(documents, scores, "the scores sidecar")
    languages = np.asarray(labels["language"].to_pylist(), dtype=object)
    lists = part.payload["lists"]
    hits, masks = find_keywords(config.keywords, lists, documents["text"], languages)
    url_hits = find_urls(config.urls, lists, documents["url"])
    features = measure_features(documents["text"], languages) | url_hits | hits
    if OTHER_LANGUAGE in labels.column_names:
        others = labels[OTHER_LANGUAGE].to_numpy(zero_copy_only=False)
        features[OTHER_LANGUAGE] = others.astype(np.float64)
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
    columns = {"id": documents["id"], "num_bytes": num_bytes, **features, **score_columns}
    columns |= {"verdict": verdicts, "drops": drops, "kept": drops == 0}
    if masks is not None:
        columns["masks"] = masks
    line_cuts = None
    if config.line_cuts.rules != "none":
        # C4 has no rule for scripts without spaces.
        wanted = features["unsegmented_frac"] < UNSEGMENTED_FROM
        if config.line_cuts.languages:
            wanted &= np.isin(languages.astype(str), config.line_cuts.languages)
        line_cuts = cut_lines(documents["text"], wanted, config.line_cuts.rules)
        columns["cuts"] = line_cuts
    if buckets := part.payload["buckets"]:
        values = scores[buckets["score"]].to_numpy(zero_copy_only=False).astype(np.float64)
        columns["bucket"] = bucket_of(buckets, values, languages)
    write_table(pa.table(columns), directory / SIDECAR_FILE)
    labels_of = {"source": sources, "language": languages}
    if config.by_kind:
        labels_of["kind"] = np.array([kind or NONE for kind in kinds], object)
    counts = count_part(book, verdicts, drops, labels_of)
    if buckets:
        counts["buckets"] = count_buckets(columns["bucket"], num_bytes.to_numpy(), languages)
    if line_cuts is not None:
        counts["line_cuts"] = count_line_cuts(line_cuts, drops == 0)
    if config.keywords:
        counts["keywords"] = count_keywords(config.keywords, hits)
    if url_hits:
        counts["urls"] = {name: int(values.sum()) for name, values in url_hits.items()}
    if part.payload["labels"]:
        by_label = read_table(part.payload["labels"])
        counts["score_rules"] = count_by_label(book, verdicts, judged, by_label)
    return counts


def _nothing_left(counters: Mapping[str, Any]) -> str:
    if not counters["read"]:
        return "quality read no documents; check the counts of ingest"
    worst = sorted(counters["dropped"].items(), key=lambda item: (-item[1], item[0]))[:3]
    return (
        f"quality dropped all {counters['read']} documents, most for"
        f" {', '.join(f'{name} {count}' for name, count in worst)}; try quality=lenient, or"
        f" ++quality.thresholds.{worst[0][0]}=null"
    )

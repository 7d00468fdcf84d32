"""Scores each document by models of good text: one number per document and configured model.

Classifiers (`tasks.scores.classifier`) and perplexities (`tasks.scores.perplexity`) are trained on
documents that a condition chooses, or on files, or given. With nothing configured, the default, the
sidecar holds ids and nothing is read.

In: id, text, and what conditions name; language. Out: a sidecar `id` and one float32 column per
score, null where it does not apply: a text without words, a language without a model. Nothing is
dropped here; `quality.limits` cuts by value, share or chance. Four passes in parts: texts to learn
from are gathered, models trained (a part each), documents scored, and what a cut would keep counted
by language, source and register (a metadata value): classifiers are known to lose dialects and
colloquial text, which only such a table shows. Each text is scored by models that have not read it.
Memory: one part, and one number per document. Deterministic for equal documents, whatever the
number of workers and the division into parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.corpus.documentset import (
    ID,
    SIDECAR_FILE,
    check_aligned,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    write_table,
)
from tasks.corpus.named_labels import check_conditions
from tasks.corpus.score_cuts import cuts_keeping, passing
from tasks.corpus.score_labels import DIMENSIONS, LABELS_FILE, LABELS_FOLDER, label_table
from tasks.corpus.tally import largest
from tasks.runtime.artifact import Artifact, check_accounting, link_file
from tasks.runtime.inputs import digest_input
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, PartResult, RunParts, serial
from tasks.scores.classifier import ClassifierConfig, classify, classify_texts, is_linear_model
from tasks.scores.config import ScoresConfig
from tasks.scores.learning import ModelFiles, learn_models
from tasks.scores.perplexity import (
    ANY,
    ANY_LANGUAGE,
    PerplexityConfig,
    kenlm_log10_probabilities,
    log10_probabilities,
    perplexities,
    require_kenlm,
)
from tasks.scores.unit_rows import UnitRows, text_prefix

KEPT_FRACS = (0.1, 0.25, 0.5)
"""Shares kept in the tables of what a cut would keep; DCLM kept a tenth."""
QUANTILES = (0.01, 0.1, 0.25, 0.3, 0.5, 0.6, 0.75, 0.9, 0.99)
NUM_BINS = 20
MODELS_FOLDER = "models"


def score_documents(
    ingest: Artifact,
    language: Artifact,
    out_dir: Path,
    config: ScoresConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Give every document its scores.

    Raises ConfigError for a condition that is none, StageFailure where too few documents are there
    to learn from.
    """
    check_conditions(config, "scores")
    parts = document_parts(ingest, language=language)
    models, training = learn_models(parts, out_dir, config, run_parts)
    models |= _given_models(config)
    # Finished parts are found by what they read, and they read the models too.
    known = {
        name: [[group, fold, digest_input(Path(file))] for group, fold, file in files]
        for name, files in models.items()
    }
    scoring = [
        Part(
            part.name,
            digest({"pass": "score", "part": part.digest, "models": known}),
            {**part.payload, "models": models},
        )
        for part in parts
    ]
    results = run_parts(score_part, scoring, config, out_dir)
    link_sidecars(results, out_dir)
    if config.names:
        for result in results:
            link_file(result.path / LABELS_FILE, out_dir / LABELS_FOLDER / result.name)
    for name in training:
        for label, fold, file in models[name]:
            link_file(Path(file), out_dir / MODELS_FOLDER / f"{name}-{label or ANY}-{fold}")
    read = sum(result.counters["read"] for result in results)
    counters = {"read": read, "kept": read, "dropped": {}, "quarantined": 0}
    check_accounting("scores", counters)
    metrics = _metrics(scoring, results, training, out_dir, config, run_parts)
    return Artifact(out_dir, "scores", counters, {"scores": metrics})


def score_part(part: Part, directory: Path, config: ScoresConfig) -> Mapping[str, Any]:
    """The scores of one file of documents, and the labels that tables are made by."""
    if not config.names:
        ids = read_table(part.payload["documents"], ["id"])
        write_table(pa.table([ids["id"]], schema=pa.schema([("id", ID)])), directory / SIDECAR_FILE)
        return {"read": ids.num_rows}
    documents = read_table(part.payload["documents"], ["id", "text", "source", "metadata"])
    labels = read_table(part.payload["language"], ["id", "language"])
    check_aligned(documents, labels, "the language sidecar")
    texts, languages = documents["text"], np.array(labels["language"].to_pylist(), object)
    rows_of = functools.cache(lambda most_bytes: UnitRows.of_texts(texts, most_bytes))
    columns: dict[str, Any] = {"id": documents["id"]}
    for name in config.names:
        files: ModelFiles = part.payload["models"].get(name, [])
        if name in config.classifiers:
            values = _classifier_scores(texts, rows_of, files, config.classifiers[name])
        else:
            one = config.perplexities[name]
            values = _perplexity_scores(texts, languages, rows_of(one.prefix_bytes), files, one)
        columns[name] = pa.array(values, pa.float32(), from_pandas=True)
    write_table(pa.table(columns), directory / SIDECAR_FILE)
    table = label_table(documents, labels["language"], config.register_key)
    write_table(table, directory / LABELS_FILE)
    return {"read": len(texts)}


def tally_part(part: Part, directory: Path, config: ScoresConfig) -> Mapping[str, Any]:
    """{score: {dimension: {label: counts}}} of one part: scored documents, and how many the cuts
    keep."""
    del directory
    labels, scores = read_table(part.payload["labels"]), read_table(part.payload["scores"])
    counts: dict[str, Any] = {}
    languages = np.array(labels["language"].to_pylist(), object)
    sizes = labels["bytes"].to_numpy()
    for name in config.names:
        values = scores[name].to_numpy(zero_copy_only=False).astype(np.float64)
        scored = ~np.isnan(values)
        groups = languages if _by_language(config, name) else None
        kept = {
            frac: scored & passing(values, groups, cuts, config.best(name))
            for frac, cuts in part.payload["cuts"][name].items()
        }
        counts[name] = {}
        for dimension in DIMENSIONS:
            column = np.array(labels[dimension].to_pylist(), object).astype(str)
            names, places = np.unique(column, return_inverse=True)
            columns = {
                "documents": np.bincount(places),
                "bytes": np.bincount(places, sizes),
                "scored": np.bincount(places, scored),
            }
            columns |= {f"kept_{frac}": np.bincount(places, which) for frac, which in kept.items()}
            counts[name][dimension] = {
                str(label): {what: int(numbers[i]) for what, numbers in columns.items()}
                for i, label in enumerate(names)
            }
    return counts


def _classifier_scores(
    texts: pa.ChunkedArray,
    rows_of: Callable[[int], UnitRows],
    files: ModelFiles,
    config: ClassifierConfig,
) -> np.ndarray:
    if config.model_path is not None:
        [[_, _, file]] = files
        if not is_linear_model(Path(file)):
            return classify_texts(texts, Path(file), config)
        rows = rows_of(config.prefix_bytes)
        return classify(rows, np.arange(len(rows)), Path(file))
    rows = rows_of(config.prefix_bytes)
    scores = np.full(len(rows), np.nan, np.float32)
    folds = rows.keys(config.seed) % np.uint64(config.folds)
    for _, fold, file in files:
        mine = np.flatnonzero(folds == fold)
        scores[mine] = classify(rows, mine, Path(file))
    return scores


def _perplexity_scores(
    texts: pa.ChunkedArray,
    languages: np.ndarray,
    rows: UnitRows,
    files: ModelFiles,
    config: PerplexityConfig,
) -> np.ndarray:
    scores = np.full(len(rows), np.nan, np.float32)
    # Given models have read none of the texts: all of these are in fold 0.
    folds = np.zeros(len(rows), np.uint64)
    if config.trains:
        folds = rows.keys(config.seed) % np.uint64(config.folds)
    for group, fold, file in files:
        mine = np.flatnonzero((folds == fold) & ((languages == group) | (group == ANY_LANGUAGE)))
        if config.trains:
            log10_probs = log10_probabilities(rows.take(mine), Path(file))
        else:
            prefixes = [text_prefix(texts[int(row)].as_py(), config.prefix_bytes) for row in mine]
            log10_probs = kenlm_log10_probabilities(prefixes, Path(file))
        scores[mine] = perplexities(log10_probs, np.diff(rows.begins)[mine])
    return scores


def _metrics(
    scoring: Sequence[Part],
    results: Sequence[PartResult],
    training: Mapping[str, Any],
    out_dir: Path,
    config: ScoresConfig,
    run_parts: RunParts,
) -> dict[str, Any]:
    """What is to be known of each score: its distribution, how it was learnt, and what cuts would
    keep."""
    if not config.names:
        return {}
    sidecars = [result.path / SIDECAR_FILE for result in results]
    values = {name: _column(sidecars, name) for name in config.names}
    labels = [read_table(r.path / LABELS_FILE, ["language"])["language"] for r in results]
    languages = np.concatenate([np.array(column.to_pylist(), object) for column in labels])
    cuts: dict[str, dict[str, Any]] = {}
    for name in config.names:
        groups, best = languages if _by_language(config, name) else None, config.best(name)
        cuts[name] = {
            str(frac): cuts_keeping(values[name], groups, frac, best) for frac in KEPT_FRACS
        }
    parts = [
        Part(
            part.name,
            digest({"pass": "tally", "part": part.digest, "cuts": cuts}),
            {
                "labels": str(result.path / LABELS_FILE),
                "scores": str(result.path / SIDECAR_FILE),
                "cuts": cuts,
            },
        )
        for part, result in zip(scoring, results, strict=True)
    ]
    tallied = run_parts(tally_part, parts, config, out_dir)
    counts = sum_counters(result.counters for result in tallied)
    return {
        name: {
            "kind": "classifier" if name in config.classifiers else "perplexity",
            "best": config.best(name),
            "cut_by_language": _by_language(config, name),
            **_distribution(values[name]),
            "by": {dimension: largest(counts[name][dimension]) for dimension in DIMENSIONS},
            "training": training.get(name, {}),
        }
        for name in config.names
    }


def _distribution(values: np.ndarray) -> dict[str, Any]:
    scored = values[~np.isnan(values)]
    about = {"scored": len(scored), "unscored": len(values) - len(scored)}
    if len(scored) == 0:
        return about | {"quantiles": {}, "histogram": {"edges": [], "counts": []}}
    # Bins from the first to the last percentile but one: a single perplexity of millions would
    # leave one bin for all others.
    low, high = np.quantile(scored, [0.005, 0.995])
    edges = np.linspace(low, max(high, low + 1e-6), NUM_BINS + 1)
    counts, _ = np.histogram(np.clip(scored, edges[0], edges[-1]), edges)
    quantiles = zip(map(str, QUANTILES), np.quantile(scored, QUANTILES).tolist(), strict=True)
    return about | {
        "quantiles": dict(quantiles),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def _column(files: Sequence[Path], name: str) -> np.ndarray:
    """A score of all documents as float64, NaN for null."""
    columns = [read_table(file, [name])[name].to_numpy(zero_copy_only=False) for file in files]
    return np.concatenate([np.zeros(0), *columns])


def _by_language(config: ScoresConfig, name: str) -> bool:
    """Whether values of different languages do not compare, so that each language is cut for
    itself."""
    if name not in config.perplexities:
        return False
    one = config.perplexities[name]
    return one.per_language if one.trains else ANY not in one.kenlm_models


def _given_models(config: ScoresConfig) -> dict[str, ModelFiles]:
    """Models that are applied as they are: {score: [[language, fold, file]]}."""
    models: dict[str, ModelFiles] = {
        name: [[ANY_LANGUAGE, 0, str(c.model_path)]]
        for name, c in config.classifiers.items()
        if c.model_path is not None
    }
    for name, perplexity in config.perplexities.items():
        if not perplexity.trains:
            require_kenlm()
            models[name] = [
                [ANY_LANGUAGE if language == ANY else language, 0, str(file)]
                for language, file in sorted(perplexity.kenlm_models.items())
            ]
    return models

"""Chooses the texts that models of the scores stage learn from, and trains one model per part.

Each text has a 64-bit hash of what a model would read of it (`tasks.scores.unit_rows`). The hash
decides all there is to decide: equal texts are one, the smallest hashes are taken up to a limit,
hash % folds is the fold, and texts are read in the order of their hashes; so the choice is the same
for any division into parts and any order of files. A text that is both positive and negative
teaches nothing. `tasks.scores.pools` gathers the candidates. Fold f of a score is trained on all
others, and judged on fold f.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.corpus.documentset import SIDECAR_FILE, read_table, write_table
from tasks.corpus.statistics import roc_auc
from tasks.runtime.artifact import digest_file
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, PartResult, RunParts, scratch_dir
from tasks.runtime.stage import StageFailure
from tasks.scores.classifier import MIN_TEXTS, ClassifierConfig, classify, train_classifier
from tasks.scores.config import ScoresConfig
from tasks.scores.language_model import train_ngram_model
from tasks.scores.perplexity import ANY_LANGUAGE, PerplexityConfig, log10_probabilities
from tasks.scores.pools import POOL, document_parts, file_parts, gather_part, with_room
from tasks.scores.unit_rows import UnitRows

ModelFiles = list[list[Any]]
"""[language or ANY_LANGUAGE, fold, path] of each model of a score."""

MODEL_FILE, HELD_OUT_FILE = "model", "held-out.parquet"
NUM_CALIBRATION_BINS = 10


def learn_models(
    parts: Sequence[Part], out_dir: Path, config: ScoresConfig, run_parts: RunParts
) -> tuple[dict[str, ModelFiles], dict[str, Any]]:
    """Train what has to be trained: {score: its models}, {score: how it was learnt}. Raises
    StageFailure for too few texts."""
    configured: dict[str, ClassifierConfig | PerplexityConfig] = {
        **config.classifiers,
        **config.perplexities,
    }
    learning = {name: c for name, c in configured.items() if c.trains}
    if not learning:
        return {}, {}
    pools = run_parts(
        gather_part, [*document_parts(parts, learning), *file_parts(config)], config, out_dir
    )
    files = [str(pool.path / SIDECAR_FILE) for pool in pools]
    facts = [read_table(file, POOL.names[:-1]) for file in files]
    candidates = pa.concat_tables(facts).combine_chunks()
    work: list[Part] = []
    training: dict[str, Any] = {}
    for name, one in learning.items():
        mine = candidates.filter(pc.equal(candidates["score"], name))
        if isinstance(one, ClassifierConfig):
            chosen, training[name] = _choose_classes(name, mine, one)
        else:
            chosen, training[name] = _choose_references(name, mine, one)
        for language, table in chosen.items():
            file = scratch_dir(out_dir) / f"lesson-{name}-{len(work)}.parquet"
            write_table(table, file)
            for fold in range(one.folds):
                lesson = {"score": name, "language": language, "fold": fold}
                key = digest({"pass": "train", "chosen": digest_file(file), **lesson})
                payload = {**lesson, "chosen": str(file), "pools": files}
                work.append(Part(f"{name}-{language}-{fold}", key, payload))
    made = run_parts(train_part, work, config, out_dir)
    models: dict[str, ModelFiles] = {name: [] for name in learning}
    by_score: dict[str, list[tuple[str, PartResult]]] = {name: [] for name in learning}
    for part, result in zip(work, made, strict=True):
        name, language, fold = (part.payload[k] for k in ("score", "language", "fold"))
        models[name].append([language, fold, str(result.path / MODEL_FILE)])
        by_score[name].append((language, result))
    for name, one in learning.items():
        judge = _judge_classifier if isinstance(one, ClassifierConfig) else _judge_language_models
        training[name] |= judge(by_score[name])
    return models, training


def train_part(part: Part, directory: Path, config: ScoresConfig) -> Mapping[str, Any]:
    """One model, and how it does on the fold it has not seen."""
    name, fold = part.payload["score"], part.payload["fold"]
    keys, positive, rows = _chosen_rows(part)
    model_file = directory / MODEL_FILE
    one = config.classifiers[name] if name in config.classifiers else config.perplexities[name]
    held_out = np.flatnonzero(keys % np.uint64(one.folds) == fold)
    learnt = np.flatnonzero(keys % np.uint64(one.folds) != fold)
    if isinstance(one, ClassifierConfig):
        if len(np.unique(positive[learnt])) < 2:
            raise StageFailure(
                f"scores.classifiers.{name}: the texts outside fold {fold} are of one class only;"
                " give more texts, or set another seed, which divides them differently"
            )
        train_classifier(rows.take(learnt), positive[learnt], one, model_file)
        scores = classify(rows, held_out, model_file)
        judged = pa.table({"positive": positive[held_out], "score": scores})
        write_table(judged, directory / HELD_OUT_FILE)
        return {"texts": len(learnt)}
    try:
        model = train_ngram_model(rows.take(learnt), one.order)
    except ValueError as error:
        raise StageFailure(f"scores.perplexities.{name}: {error}") from error
    model.save(model_file)
    unread = rows.take(held_out)
    log10_probs = log10_probabilities(unread, model_file)
    return {
        "texts": len(learnt),
        "ngrams": len(model.keys) - 1,
        "held_out_log10": float(log10_probs.sum()),
        "held_out_units": len(unread.units) + len(unread),
    }


def _choose_classes(
    name: str, candidates: pa.Table, config: ClassifierConfig
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """The texts a classifier learns from: distinct, of one class only, and at most so many of
    each."""
    positive = candidates["positive"].to_numpy(zero_copy_only=False)
    hashes, most = candidates["hash"].to_numpy(), config.max_documents
    classes = [np.unique(hashes[positive]), np.unique(hashes[~positive])]
    both = np.intersect1d(classes[0], classes[1], assume_unique=True)
    # Sorted, so these are the smallest hashes.
    classes = [np.setdiff1d(one, both, assume_unique=True)[:most] for one in classes]
    for what, one in zip(("positive", "negative"), classes, strict=True):
        if len(one) < MIN_TEXTS:
            raise StageFailure(
                f"scores.classifiers.{name} finds {len(one)} different {what} texts and needs"
                f" {MIN_TEXTS}; widen its condition {what}s or give {what}_files"
            )
    chosen = np.concatenate(classes)
    order = np.argsort(chosen)
    labels = np.repeat([True, False], [len(one) for one in classes])
    table = pa.table({"hash": chosen[order], "positive": labels[order]})
    counts = {
        "positives": len(classes[0]),
        "negatives": len(classes[1]),
        "in_both": len(both),
        "folds": config.folds,
    }
    return {ANY_LANGUAGE: table}, counts


def _choose_references(
    name: str, candidates: pa.Table, config: PerplexityConfig
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """For each language with enough text in every fold, the texts its models are trained on."""
    chosen, languages = {}, {}
    for language in sorted(set(candidates["language"].to_pylist())):
        mine = candidates.filter(pc.equal(candidates["language"], language))
        hashes, first = np.unique(mine["hash"].to_numpy(), return_index=True)
        sizes = mine["num_bytes"].to_numpy()[first]
        taken = with_room(sizes, config.max_reference_bytes)
        hashes, total = hashes[taken], int(sizes[taken].sum())
        num_folds = len(np.unique(hashes % np.uint64(config.folds)))
        if total >= config.min_reference_bytes and num_folds == config.folds:
            chosen[language] = pa.table({"hash": hashes, "positive": np.ones(len(hashes), bool)})
            languages[language] = {"texts": len(hashes), "bytes": total}
    if not chosen:
        raise StageFailure(
            f"scores.perplexities.{name} finds no language with {config.min_reference_bytes} bytes"
            " of reference text; widen reference, give reference_files, or lower"
            " min_reference_bytes"
        )
    return chosen, {"languages": languages, "folds": config.folds, "order": config.order}


def _chosen_rows(part: Part) -> tuple[np.ndarray, np.ndarray, UnitRows]:
    """Keys, classes and units of the chosen texts, in the order of their keys."""
    wanted = read_table(part.payload["chosen"])
    mine = (pc.field("score") == part.payload["score"]) & (
        pc.field("language") == part.payload["language"]
    )
    tables = []
    for pool in part.payload["pools"]:
        columns = ["hash", "positive", "units"]
        table = pq.read_table(pool, columns=columns, filters=mine, use_threads=False)
        tables.append(table.filter(pc.is_in(table["hash"], value_set=wanted["hash"])))
    table = pa.concat_tables(tables)
    keys, first = np.unique(table["hash"].to_numpy(), return_index=True)
    assert np.array_equal(keys, wanted["hash"].to_numpy()), (
        "chosen texts are in the pools they were chosen from"
    )
    positive = table["positive"].to_numpy(zero_copy_only=False)[first]
    return keys, positive, UnitRows.from_lists(table["units"]).take(first)


def _judge_classifier(made: Sequence[tuple[str, PartResult]]) -> dict[str, Any]:
    """ROC area and calibration over all held-out texts: each was scored by the one model that had
    not seen it."""
    table = pa.concat_tables([read_table(result.path / HELD_OUT_FILE) for _, result in made])
    positive = table["positive"].to_numpy(zero_copy_only=False)
    scores = table["score"].to_numpy(zero_copy_only=False).astype(np.float64)
    auc = roc_auc(scores[positive], scores[~positive])
    bins = np.minimum((scores * NUM_CALIBRATION_BINS).astype(np.int64), NUM_CALIBRATION_BINS - 1)
    calibration = [
        {
            "low": i / NUM_CALIBRATION_BINS,
            "high": (i + 1) / NUM_CALIBRATION_BINS,
            "texts": int((bins == i).sum()),
            "mean_score": float(scores[bins == i].mean()) if (bins == i).any() else None,
            "positive_frac": float(positive[bins == i].mean()) if (bins == i).any() else None,
        }
        for i in range(NUM_CALIBRATION_BINS)
    ]
    return {
        "auc": {"value": auc.value, "low": auc.low, "high": auc.high},
        "calibration": calibration,
    }


def _judge_language_models(made: Sequence[tuple[str, PartResult]]) -> dict[str, Any]:
    """Perplexity of each language's held-out reference: what text like the reference costs."""
    held_out = {}
    for language in dict.fromkeys(language for language, _ in made):
        counts = [result.counters for one, result in made if one == language]
        log10 = sum(c["held_out_log10"] for c in counts) / sum(c["held_out_units"] for c in counts)
        held_out[language] = {"perplexity": 10**-log10, "ngrams": sum(c["ngrams"] for c in counts)}
    return {"held_out": held_out}

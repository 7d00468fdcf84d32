"""What do the models of the scores stage learn from? Texts gathered in parts, chosen by hash, and one training part per model.

Each text has a 64-bit hash of what a model would read of it. The hash decides all there is to decide: equal texts are one, the
smallest hashes are taken up to a limit, hash % folds is the fold, and texts are read in the order of their hashes; so the choice is
the same for any division into parts and order of files. A text that is both positive and negative teaches neither.
A pool part holds `score, positive, language, hash, num_bytes, text` of the candidates in one file; no more of each score than the
limit, which bounds what is kept on disk. Fold f of a score is trained on all other folds, and judged on fold f.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.artifact import digest_file
from tasks.classifier import MIN_TEXTS, POSITIVE, ClassifierConfig, classify, text_line, train_classifier
from tasks.documentset import SIDECAR_FILE, check_aligned, read_table, write_table
from tasks.keys import digest
from tasks.parts import Part, PartResult, RunParts, scratch_dir
from tasks.perplexity import ANY_LANGUAGE, PerplexityConfig, log10_probabilities, text_prefix, train_model
from tasks.selection import chosen_rows, condition_table, text_hash, texts_of_file
from tasks.stage import StageFailure
from tasks.statistics import roc_auc

if TYPE_CHECKING:
    from tasks.scores import ScoresConfig

ModelFiles = list[list[Any]]
"""[language or ANY_LANGUAGE, fold, path] of each model of a score."""

POOL = pa.schema(
    [
        ("score", pa.string()),
        ("positive", pa.bool_()),
        ("language", pa.string()),
        ("hash", pa.uint64()),
        ("num_bytes", pa.int64()),
        ("text", pa.large_string()),
    ]
)
MODEL_FILE, HELD_OUT_FILE = "model", "held-out.parquet"
NUM_CALIBRATION_BINS = 10


def learn_models(
    parts: Sequence[Part], out_dir: Path, config: ScoresConfig, run_parts: RunParts
) -> tuple[dict[str, ModelFiles], dict[str, Any]]:
    """Train what has to be trained: {score: its models}, {score: how it was learnt}. Raises StageFailure for too few texts."""
    learning = {name: c for name, c in (*config.classifiers.items(), *config.perplexities.items()) if c.trains}
    if not learning:
        return {}, {}
    pools = run_parts(gather_part, [*_document_parts(parts, learning), *_file_parts(config)], config, out_dir)
    files = [str(pool.path / SIDECAR_FILE) for pool in pools]
    candidates = pa.concat_tables([read_table(file, POOL.names[:-1]) for file in files]).combine_chunks()
    lessons: list[tuple[str, str, int]] = []
    work: list[Part] = []
    training: dict[str, Any] = {}
    for name, one in learning.items():
        mine = candidates.filter(pc.equal(candidates["score"], name))
        choose = _choose_classes if isinstance(one, ClassifierConfig) else _choose_references
        chosen, training[name] = choose(name, mine, one)  # type: ignore[operator]
        for language, table in chosen.items():
            file = scratch_dir(out_dir) / f"lesson-{name}-{len(lessons)}.parquet"
            write_table(table, file)
            for fold in range(one.folds):
                lesson = {"score": name, "language": language, "fold": fold}
                key = digest({"pass": "train", "chosen": digest_file(file), **lesson})
                work.append(Part(f"{name}-{language}-{fold}", key, {**lesson, "chosen": str(file), "pools": files}))
                lessons.append((name, language, fold))
    made = run_parts(train_part, work, config, out_dir)
    models: dict[str, ModelFiles] = {name: [] for name in learning}
    for (name, language, fold), result in zip(lessons, made, strict=True):
        models[name].append([language, fold, str(result.path / MODEL_FILE)])
    for name, one in learning.items():
        mine_made = [(language, result) for (score, language, _), result in zip(lessons, made, strict=True) if score == name]
        judge = _judge_classifier if isinstance(one, ClassifierConfig) else _judge_language_models
        training[name] |= judge(mine_made)
    return models, training


def gather_part(part: Part, directory: Path, config: ScoresConfig) -> Mapping[str, Any]:
    """The candidates in one file of documents, or in one file of texts."""
    found = _from_file(part, config) if "file" in part.payload else _from_documents(part, config)
    tables = [pa.table(columns, schema=POOL) for columns in found]
    table = pa.concat_tables([POOL.empty_table(), *tables]).combine_chunks()
    write_table(table, directory / SIDECAR_FILE)
    return {"texts": table.num_rows}


def train_part(part: Part, directory: Path, config: ScoresConfig) -> Mapping[str, Any]:
    """One model, and how it does on the fold it has not seen."""
    name, fold = part.payload["score"], part.payload["fold"]
    texts = _chosen_texts(part)
    model_file = directory / MODEL_FILE
    if name in config.classifiers:
        classifier = config.classifiers[name]
        learnt = [(text, positive) for hashed, positive, text in texts if hashed % classifier.folds != fold]
        if len({positive for _, positive in learnt}) < 2:
            raise StageFailure(_one_class(name))
        train_classifier(learnt, classifier, model_file)
        held_out = [(text, positive) for hashed, positive, text in texts if hashed % classifier.folds == fold]
        scores = classify([text for text, _ in held_out], model_file, POSITIVE)
        write_table(pa.table({"positive": [positive for _, positive in held_out], "score": scores}), directory / HELD_OUT_FILE)
        return {"texts": len(learnt)}
    perplexity = config.perplexities[name]
    learnt_texts = [text for hashed, _, text in texts if hashed % perplexity.folds != fold]
    held_out_texts = [text for hashed, _, text in texts if hashed % perplexity.folds == fold]
    try:
        num_ngrams = train_model(learnt_texts, perplexity.order, model_file)
    except ValueError as error:
        raise StageFailure(f"scores.perplexities.{name}: {error}") from error
    log10_probs, units = log10_probabilities(held_out_texts, model_file)
    return {
        "texts": len(learnt_texts),
        "ngrams": num_ngrams,
        "held_out_log10": float(log10_probs.sum()),
        "held_out_units": int(units.sum() + len(units)),
    }


def _document_parts(parts: Sequence[Part], learning: Mapping[str, Any]) -> list[Part]:
    if not any(getattr(one, "positives", None) or getattr(one, "reference", None) for one in learning.values()):
        return []
    return [Part(part.name, digest({"pass": "gather", "part": part.digest}), part.payload) for part in parts]


def _file_parts(config: ScoresConfig) -> list[Part]:
    parts = []
    for role, file in config.input_files().items():
        name, what, *_ = role.split("/")
        if what in ("positive_files", "negative_files", "reference_files"):
            payload = {"file": str(file), "score": name, "positive": what != "negative_files"}
            key = digest({"pass": "gather", "content": digest_file(file), "format": file.suffixes, **payload, "file": ""})
            parts.append(Part(role, key, payload))
    return parts


def _from_documents(part: Part, config: ScoresConfig) -> Iterator[list[Any]]:
    documents, labels = read_table(part.payload["documents"]), read_table(part.payload["language"], ["id", "language"])
    check_aligned(documents, labels, "the language sidecar")
    table = condition_table(documents, labels["language"])
    texts, languages = documents["text"].to_pylist(), labels["language"].to_pylist()
    for name, classifier in config.classifiers.items():
        if not classifier.positives and not classifier.negatives:
            continue
        where = f"scores.classifiers.{name}"
        nowhere = np.zeros(len(texts), bool)
        good = chosen_rows(table, classifier.positives, f"{where}.positives") if classifier.positives else nowhere
        bad = chosen_rows(table, classifier.negatives, f"{where}.negatives") if classifier.negatives else nowhere
        bad = ~good if classifier.rest_is_negative else bad
        for positive, rows in ((True, good), (False, bad)):
            yield _class_pool(name, positive, (texts[row] for row in np.flatnonzero(rows)), classifier)
    for name, perplexity in config.perplexities.items():
        if perplexity.reference:
            rows = np.flatnonzero(chosen_rows(table, perplexity.reference, f"scores.perplexities.{name}.reference"))
            pairs = [(languages[row] if perplexity.per_language else ANY_LANGUAGE, texts[row]) for row in rows]
            yield _reference_pool(name, pairs, perplexity)


def _from_file(part: Part, config: ScoresConfig) -> Iterator[list[Any]]:
    name, file = part.payload["score"], Path(part.payload["file"])
    if name in config.classifiers:
        classifier = config.classifiers[name]
        yield _class_pool(name, part.payload["positive"], texts_of_file(file, classifier.text_column), classifier)
        return
    perplexity = config.perplexities[name]
    language = perplexity.reference_language if perplexity.per_language else None
    pairs = [(language or ANY_LANGUAGE, text) for text in texts_of_file(file, perplexity.text_column)]
    yield _reference_pool(name, pairs, perplexity)


def _class_pool(name: str, positive: bool, texts: Iterator[str], config: ClassifierConfig) -> list[Any]:
    """The lines with the smallest hashes, as columns of a pool."""
    lines = {text_hash(line.encode(), config.seed): line for text in texts if (line := text_line(text, config))}
    kept = sorted(lines.items())[: config.max_documents]
    sizes = [len(line.encode()) for _, line in kept]
    return _pool_columns(name, positive, [ANY_LANGUAGE] * len(kept), [h for h, _ in kept], sizes, [line for _, line in kept])


def _reference_pool(name: str, pairs: Sequence[tuple[str, str]], config: PerplexityConfig) -> list[Any]:
    """The reference texts with the smallest hashes, up to the limit of each language, as columns of a pool."""
    found: dict[tuple[str, int], str] = {}
    for language, text in pairs:
        prefix = text_prefix(text, config.prefix_bytes)
        found[language, text_hash(prefix.encode(), config.seed)] = prefix
    rows, taken = [], {language: 0 for language, _ in pairs}
    for (language, hashed), prefix in sorted(found.items()):
        size = len(prefix.encode())
        if taken[language] < config.max_reference_bytes:
            taken[language] += size
            rows.append((language, hashed, size, prefix))
    languages, hashes, sizes, texts = zip(*rows, strict=True) if rows else ((), (), (), ())
    return _pool_columns(name, True, languages, hashes, sizes, texts)


def _pool_columns(
    name: str, positive: bool, languages: Sequence[str], hashes: Sequence[int], sizes: Sequence[int], texts: Sequence[str]
) -> list[Any]:
    values = ([name] * len(texts), [positive] * len(texts), languages, hashes, sizes, texts)
    return [pa.array(column, kind.type) for column, kind in zip(values, POOL, strict=True)]


def _choose_classes(name: str, candidates: pa.Table, config: ClassifierConfig) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """The texts a classifier learns from: distinct, of one class only, and at most so many of each."""
    positive, hashes = candidates["positive"].to_numpy(zero_copy_only=False), candidates["hash"].to_numpy()
    classes = [np.unique(hashes[positive]), np.unique(hashes[~positive])]
    both = np.intersect1d(*classes, assume_unique=True)
    classes = [np.setdiff1d(one, both, assume_unique=True)[: config.max_documents] for one in classes]
    for what, one in zip(("positive", "negative"), classes, strict=True):
        if len(one) < MIN_TEXTS:
            raise StageFailure(
                f"scores.classifiers.{name} finds {len(one)} different {what} texts and needs {MIN_TEXTS}; "
                f"widen its condition of {what}s or give {what}_files"
            )
    chosen = np.concatenate(classes)
    order = np.argsort(chosen)
    labels = np.repeat([True, False], [len(one) for one in classes])
    table = pa.table({"hash": chosen[order], "positive": labels[order]})
    counts = {"positives": len(classes[0]), "negatives": len(classes[1]), "in_both": len(both), "folds": config.folds}
    return {ANY_LANGUAGE: table}, counts


def _choose_references(name: str, candidates: pa.Table, config: PerplexityConfig) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """For each language with enough text in every fold, the texts its models are trained on."""
    chosen, languages = {}, {}
    for language in sorted(set(candidates["language"].to_pylist())):
        mine = candidates.filter(pc.equal(candidates["language"], language))
        hashes, first = np.unique(mine["hash"].to_numpy(), return_index=True)
        sizes = mine["num_bytes"].to_numpy()[first]
        # Texts are taken while there is room before them, so that one long text does not shut the door.
        taken = np.cumsum(sizes) - sizes < config.max_reference_bytes
        hashes, total = hashes[taken], int(sizes[taken].sum())
        if total >= config.min_reference_bytes and len(set((hashes % np.uint64(config.folds)).tolist())) == config.folds:
            chosen[language] = pa.table({"hash": hashes, "positive": np.ones(len(hashes), bool)})
            languages[language] = {"texts": len(hashes), "bytes": total}
    if not chosen:
        raise StageFailure(
            f"scores.perplexities.{name} finds no language with {config.min_reference_bytes} bytes of reference text; "
            "widen reference, give reference_files, or lower min_reference_bytes"
        )
    return chosen, {"languages": languages, "folds": config.folds, "order": config.order}


def _chosen_texts(part: Part) -> list[tuple[int, bool, str]]:
    """(hash, is positive, text) of the chosen texts, in the order of their hashes."""
    wanted = read_table(part.payload["chosen"])
    classes = dict(zip(wanted["hash"].to_pylist(), wanted["positive"].to_pylist(), strict=True))
    found: dict[int, tuple[int, bool, str]] = {}
    mine = (pc.field("score") == part.payload["score"]) & (pc.field("language") == part.payload["language"])
    for pool in part.payload["pools"]:
        table = pq.read_table(pool, columns=["hash", "positive", "text"], filters=mine, use_threads=False)
        table = table.filter(pc.is_in(table["hash"], value_set=wanted["hash"]))
        for hashed, positive, text in zip(*(table[c].to_pylist() for c in ("hash", "positive", "text")), strict=True):
            if positive == classes[hashed]:
                found[hashed] = (hashed, positive, text)
    assert found.keys() == classes.keys(), "chosen texts are in the pools they were chosen from"
    return [found[hashed] for hashed in sorted(found)]


def _judge_classifier(made: Sequence[tuple[str, PartResult]]) -> dict[str, Any]:
    """ROC area and calibration over all held-out texts: each was scored by the one model that had not seen it."""
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
    return {"auc": {"value": auc.value, "low": auc.low, "high": auc.high}, "calibration": calibration}


def _judge_language_models(made: Sequence[tuple[str, PartResult]]) -> dict[str, Any]:
    """Perplexity of each language's held-out reference: what text like the reference costs."""
    held_out = {}
    for language in dict.fromkeys(language for language, _ in made):
        counts = [result.counters for one, result in made if one == language]
        log10 = sum(c["held_out_log10"] for c in counts) / sum(c["held_out_units"] for c in counts)
        held_out[language] = {"perplexity": 10**-log10, "ngrams": sum(c["ngrams"] for c in counts)}
    return {"held_out": held_out}


def _one_class(name: str) -> str:
    return (
        f"scores.classifiers.{name}: a fold has texts of one class only; "
        "give more examples, or another seed, which divides them in another way"
    )

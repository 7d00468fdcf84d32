"""Scores which of two groups of texts a document resembles, by linear classifiers on word n-grams,
trained in the flow or given.

Classifiers over words and word bigrams choose pre-training text in DCLM (Li et al. 2024, section 4:
fastText, positives against random web text, the best 10 % kept). For two classes fastText's model
(Joulin et al. 2016) is a linear function of the mean of n-gram vectors; here the same function is
fitted as what it is, a logistic regression on hashed n-grams
(`tasks.kernels.models.linear_ngrams`): convex, the same bytes each time, and an order of magnitude
faster (decision 0010). What is trained here is therefore no fastText model, and no `.bin` comes
out. Trained fastText models can be given and are applied as they are: those with plain softmax by
`tasks.kernels.models.softmax_classes`, others by fastText itself, three times as slow and holding
the GIL.

Nothing is scored by a model that has seen it: texts fall into `folds` by a hash, model f learns
from the other folds and scores fold f, and texts equal but for case, punctuation and white space
stay together. So the score of a training text is its held-out score, and ROC curve and calibration
are taken from it. Models are safetensors files (`weights` float32, `bias`). Cost: some nanoseconds
per n-gram and pass; 2^bits floats per model. Left out: several classes, character n-grams,
regularisation beyond that of few passes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError
from tasks.corpus.documentset import text_buffers
from tasks.corpus.named_labels import IS_CONDITION
from tasks.corpus.score_cuts import Best
from tasks.fasttext.files import MAGIC, SOFTMAX, FastTextModel, load_fasttext, read_model
from tasks.runtime.inputs import load_once
from tasks.scores.unit_rows import UnitRows, check_folds, check_positive, text_prefix

MIN_TEXTS = 10
"""Texts of each class below which there is nothing to learn from."""


@dataclass(frozen=True)
class ClassifierConfig:
    """What a classifier learns from, or which model is given."""

    positives: str | None = field(default=None, metadata=IS_CONDITION)
    """Condition on documents that selects good text, as in `metadata->>'kind' = 'prose'`."""
    negatives: str | None = field(default=None, metadata=IS_CONDITION)
    """Condition on documents that good text is compared with. Null without negative files: all
    documents that are not positive."""
    positive_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Further positives: .jsonl, .parquet, .txt, .md. Contents are part of the key."""
    negative_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Further negatives, in the same formats."""
    text_column: str = "text"
    """Column of those files that holds the text."""
    model_path: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """A trained model to apply; nothing is trained then. fastText (.bin, .ftz), or one that a run
    trained, in `models/` of its scores. Its content is part of the key."""
    label: str = "__label__hq"
    """Label of a given fastText model whose probability is the score."""
    best: Best = field(default="high", metadata=IN_KEY_IF_SET)
    """Which end of the score is good: low where the positives are what nobody wants, as toxic
    text."""
    prefix_bytes: int = 4000
    """UTF-8 bytes read of each document."""
    max_documents: int = 100_000
    """Largest number of training texts of each class, chosen by hash."""
    folds: int = 2
    """Number of models; each scores the documents that it was not trained on."""
    ngrams: int = 2
    """Longest n-gram of units that is a feature."""
    bits: int = 20
    """The table of hashed n-grams has 2^bits rows."""
    epochs: int = 5
    """Passes over the training texts."""
    lr: float = 0.3
    """Step size of AdaGrad."""
    seed: int = 0
    """Another seed chooses other texts, another order and other folds."""

    def __post_init__(self) -> None:
        check_positive(self, "prefix_bytes", "max_documents", "epochs")
        if not 1 <= self.ngrams <= 5:
            raise ConfigError(f"ngrams ({self.ngrams}) must be from 1 to 5; try 2")
        if not 10 <= self.bits <= 28:
            raise ConfigError(f"bits ({self.bits}) must be from 10 to 28; try 20")
        if self.lr <= 0:
            raise ConfigError(f"lr ({self.lr:g}) must be positive; try 0.3")
        check_folds(self.folds, self.seed)
        learns = self.positives or self.negatives or self.positive_files or self.negative_files
        if self.model_path is not None and learns:
            raise ConfigError(
                "model_path and positives or negatives exclude each other; give a model or what to"
                " learn from"
            )
        if self.model_path is None and not (self.positives or self.positive_files):
            raise ConfigError(
                "a classifier needs positives (a condition), positive_files or model_path; give one"
                " of them"
            )

    @property
    def trains(self) -> bool:
        return self.model_path is None

    @property
    def rest_is_negative(self) -> bool:
        return self.trains and not self.negatives and not self.negative_files


def train_classifier(
    rows: UnitRows, positive: np.ndarray, config: ClassifierConfig, model_file: Path
) -> None:
    """Learn from rows in their order (bool per row: is it a positive) and write the model."""
    from safetensors.numpy import save

    from tasks.kernels.models.linear_ngrams import train_weights

    weights = np.zeros(1 << config.bits, np.float32)
    told = positive.astype(np.float64)
    bias = train_weights(
        rows.units, rows.begins, told, config.ngrams, config.bits, config.epochs, config.lr, weights
    )
    about = {"kind": "linear-ngrams", "ngrams": config.ngrams, "bits": config.bits}
    # One entry only: the order of several would differ from run to run.
    model_file.write_bytes(
        save({"weights": weights, "bias": np.array([bias])}, {"textmill": json.dumps(about)})
    )


def classify(rows: UnitRows, which: np.ndarray, model_file: Path) -> np.ndarray:
    """float32 probability that rows `which` are positives, by a model of `train_classifier`; NaN
    for a row without units."""
    from tasks.kernels.models.linear_ngrams import probabilities

    weights, bias, about = _load_weights(model_file)
    scores = np.full(len(which), np.nan, np.float32)
    probabilities(
        rows.units, rows.begins, which, about["ngrams"], about["bits"], weights, bias, scores
    )
    return scores


def is_linear_model(model_file: Path) -> bool:
    """Whether a given model is one of `train_classifier`: safetensors, which begins with the length
    of a JSON object."""
    with model_file.open("rb") as file:
        head = file.read(9)
    return not head.startswith(MAGIC.to_bytes(4, "little")) and head[8:] == b"{"


def text_line(text: str, config: ClassifierConfig) -> str:
    """The line that a fastText model reads of a text: its prefix, with single spaces; empty where
    it has no words.

    fastText takes `</s>` for the end of a line and `__label__x` for a label.
    """
    prefix = text_prefix(text, config.prefix_bytes)
    return " ".join(prefix.replace("__label__", "__label __").replace("</s>", "< /s>").split())


def classify_texts(
    texts: pa.ChunkedArray | pa.Array, model_file: Path, config: ClassifierConfig
) -> np.ndarray:
    """float32 probability of the label of a given fastText model for the prefix of each text, NaN
    for one without words.

    Raises ConfigError for a label the model lacks, and for a damaged model.
    """
    model = _load_softmax(model_file)
    if model is None:
        lines = [text_line(text, config) for text in texts.to_pylist()]
        return classify_lines(lines, model_file, config.label)
    from tasks.kernels.models.softmax_classes import class_probabilities
    from tasks.kernels.text.chars import char_classes

    _check_label(config.label, model.labels, model_file)
    scores = np.full(len(texts), np.nan, np.float32)
    tables = model.words, model.lengths, model.grams, model.rows, model.outputs
    label = model.labels.index(config.label)
    blank = class_probabilities(
        *text_buffers(texts), config.prefix_bytes, char_classes(), *tables, label, scores
    )
    if np.isnan(scores).sum() > blank:
        raise ConfigError(
            f"model_path ({model_file}) gives NaN, so its training went wrong; train it again"
        )
    return scores


def classify_lines(lines: Sequence[str], model_file: Path, label: str) -> np.ndarray:
    """What `classify_texts` finds, by fastText itself, for models of other kinds."""
    predict, labels = _load_fasttext(model_file)
    _check_label(label, labels, model_file)
    scores = np.full(len(lines), np.nan, np.float32)
    for i, line in enumerate(lines):
        if line:
            # The low-level call gives (probability, label) and works on every NumPy.
            try:
                found = predict(line + "\n", -1, 0.0, "strict")
            except RuntimeError as error:  # of fastText, for NaN
                raise ConfigError(
                    f"model_path ({model_file}) fails ({error}); train it again"
                ) from error
            probability = next((p for p, name in found if name == label), 0.0)
            scores[i] = min(probability, 1.0)  # softmax sums can pass 1 by rounding
    return scores


def _check_label(label: str, labels: Collection[str], model_file: Path) -> None:
    if label not in labels:
        shown = ", ".join(sorted(labels)[:10])
        raise ConfigError(f"label ({label}) is not a label of {model_file.name}; it has {shown}")


@load_once(32)
def _load_weights(model_file: Path) -> tuple[np.ndarray, float, dict[str, int]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(model_file, "numpy") as tensors:
            about = json.loads(tensors.metadata()["textmill"])
            weights, bias = tensors.get_tensor("weights"), float(tensors.get_tensor("bias")[0])
        # The kernel masks hashes with the number of rows, and reads where they point.
        if weights.dtype != np.float32 or weights.shape != (1 << about["bits"],):
            raise ValueError(f"weights are {weights.dtype} of shape {weights.shape}")
        if not (np.isfinite(weights).all() and np.isfinite(bias) and 1 <= about["ngrams"] <= 5):
            raise ValueError(f"a weight is not finite, or ngrams ({about['ngrams']}) is not 1 to 5")
    except (SafetensorError, ValueError, TypeError, KeyError, IndexError) as error:
        raise ConfigError(
            f"model_path ({model_file}) is not a model of a run, or it is damaged; give the file"
            " from models/ of a scores artifact, or a fastText model"
        ) from error
    return weights, bias, about


@load_once(4)
def _load_softmax(model_file: Path) -> FastTextModel | None:
    try:
        return read_model(model_file, SOFTMAX)
    except ValueError as error:
        raise ConfigError(
            f"model_path ({model_file}) is damaged ({error}); fetch the model again"
        ) from error


@load_once(4)
def _load_fasttext(model_file: Path) -> tuple[Any, frozenset[str]]:
    try:
        model = load_fasttext(model_file)
    except ValueError as error:
        raise ConfigError(
            f"model_path: {model_file} is not a fastText model ({error}); give a .bin or .ftz file"
        ) from error
    return model.f.predict, frozenset(model.get_labels())

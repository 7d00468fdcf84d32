"""Does a document read more like these texts or like those? fastText classifiers, trained in the flow or given.

Linear classifiers over words and word bigrams (Joulin et al. 2016, "Bag of Tricks for Efficient Text Classification"), as used to
choose pre-training text by DCLM (Li et al. 2024, section 4: fastText, positives against random web text, the best 10 % kept).
A text becomes one line: its first `prefix_bytes`, lower-cased and cut into units (`tasks.kernels.unit_text`), or as it
is with white space made single spaces where a given model wants that. fastText reads `__label__x` inside a text as a label
and `</s>` as the end of a line: both are broken up.

Nothing is scored by a model that has seen it: texts fall into `folds` by a hash of their line, model f learns from the other
folds and scores fold f, so exact copies stay together. The score of the training texts is their held-out score, and ROC
curve and calibration are taken from it. Training runs on one thread with a fixed seed and gives the same bytes each time.
Cost: fastText, about a million words per second and pass; memory `dim` × (words + buckets) floats per model.
Left out: hierarchical softmax, quantisation, several labels per text, deduplication beyond equal lines.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llm_core.config import NOT_IN_KEY, ConfigError

POSITIVE, NEGATIVE = "__label__positive", "__label__negative"
MIN_TEXTS = 10
"""Texts of each class below which there is nothing to learn from."""


@dataclass(frozen=True)
class ClassifierConfig:
    """What a classifier learns from, or which model is given."""

    positives: str | None = None
    """Condition on documents (see `tasks.selection`): what good text is."""
    negatives: str | None = None
    """Condition on documents: what it is compared with. Null without negative files: every document that is no positive."""
    positive_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Further positives: .jsonl, .parquet, .txt, .md. Contents are part of the key."""
    negative_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Further negatives."""
    text_column: str = "text"
    """Column of those files that holds the text."""
    model_path: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """A trained fastText model (.bin, .ftz) to apply; nothing is trained then. Its content is part of the key."""
    label: str = POSITIVE
    """Label of a given model whose probability is the score."""
    tokens: Literal["units", "words"] = "units"
    """units: lower-cased words and letters, any script. words: the text as it is, for given models that were trained so."""
    prefix_bytes: int = 4000
    """UTF-8 bytes read of each document."""
    max_documents: int = 50_000
    """Texts of each class that are learnt from, chosen by hash."""
    folds: int = 2
    """Models, each of which scores what it did not learn from."""
    dim: int = 32
    """Size of a word vector."""
    word_ngrams: int = 2
    """Longest word n-gram that is a feature."""
    buckets: int = 200_000
    """Hash places for n-grams of two words and more."""
    epochs: int = 5
    """Passes over the training texts."""
    lr: float = 0.1
    """First learning rate; falls to zero."""
    seed: int = 0
    """Another seed chooses other texts, other folds and another initial model."""

    def __post_init__(self) -> None:
        for name in ("prefix_bytes", "max_documents", "dim", "word_ngrams", "epochs", "buckets"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1; leave it out for the default")
        if not 2 <= self.folds <= 16:
            raise ConfigError(f"folds ({self.folds}) must be from 2 to 16: each model is judged on what it has not seen; try 2")
        if self.lr <= 0:
            raise ConfigError(f"lr ({self.lr}) must be positive; try 0.1")
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed ({self.seed}) must be from 0 to 2^31 - 1; try 0")
        learns = bool(self.positives or self.negatives or self.positive_files or self.negative_files)
        if self.model_path is not None and learns:
            raise ConfigError("model_path and positives or negatives exclude each other; give a model or what to learn from")
        if self.model_path is None and not (self.positives or self.positive_files):
            raise ConfigError("a classifier needs positives (a condition), positive_files or model_path; give one of them")

    @property
    def trains(self) -> bool:
        return self.model_path is None

    @property
    def rest_is_negative(self) -> bool:
        return self.trains and not self.negatives and not self.negative_files


def text_line(text: str, config: ClassifierConfig) -> str:
    """The one line that stands for a text; empty where it has no words."""
    prefix = text.encode("utf-8", "replace")[: config.prefix_bytes].decode("utf-8", "ignore")
    if config.tokens == "units":
        from tasks.kernels.unit_text import spaced_units

        prefix = spaced_units(prefix.lower().encode("utf-8")).decode("utf-8")
    return " ".join(prefix.replace("__label__", "__label __").replace("</s>", "< /s>").split())


def train_classifier(lines: Iterable[tuple[str, bool]], config: ClassifierConfig, model_file: Path) -> None:
    """Learn from (line, is positive) pairs, in that order, and write the model. Raises ValueError where there is no word."""
    import fasttext

    training_file = model_file.with_name(model_file.name + ".txt")
    with training_file.open("w", encoding="utf-8", newline="\n") as stream:
        for line, positive in lines:
            stream.write(f"{POSITIVE if positive else NEGATIVE} {line}\n")
    model = fasttext.train_supervised(
        input=str(training_file),
        dim=config.dim,
        wordNgrams=config.word_ngrams,
        bucket=config.buckets,
        epoch=config.epochs,
        lr=config.lr,
        seed=config.seed,
        thread=1,  # with several threads, updates race and no two models are alike
        verbose=0,
    )
    training_file.unlink()
    model.save_model(str(model_file))


def classify(lines: Sequence[str], model_file: Path, label: str) -> np.ndarray:
    """float32 probability of `label` for each line, NaN for an empty one. Raises ConfigError for a label of no model."""
    predict, labels = _load(model_file)
    if label not in labels:
        shown = ", ".join(sorted(labels)[:10])
        raise ConfigError(f"label ({label}) is no label of {model_file.name}; it has {shown}")
    scores = np.full(len(lines), np.nan, np.float32)
    for i, line in enumerate(lines):
        if line:
            # The low-level call gives (probability, label) and works on every NumPy; softmax sums can pass 1 by rounding.
            found = {name: probability for probability, name in predict(line + "\n", -1, 0.0, "strict")}
            scores[i] = min(found.get(label, 0.0), 1.0)
    return scores


@functools.lru_cache(maxsize=32)
def _load(model_file: Path) -> tuple[Any, frozenset[str]]:
    import fasttext

    try:
        model = fasttext.load_model(str(model_file))
    except ValueError as error:
        raise ConfigError(f"{model_file} is not a fastText model; give a .bin or .ftz file") from error
    return model.f.predict, frozenset(model.get_labels())

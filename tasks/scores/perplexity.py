"""Measures how surprising a document is to a model of good text: perplexity under n-gram models,
one per language.

CCNet (Wenzek et al. 2020, section 4) sorts web text by its perplexity under models of Wikipedia,
and cuts each language at percentiles of its own into head, middle and tail: perplexities of
different languages, or of models from different references, do not compare. perplexity = 10^(−log10
p / (units + 1)), where p is that of a document's first `prefix_bytes` as one row of units with its
end (`tasks.scores.language_model`); CCNet's units are sentencepiece's: its cut-offs do not carry
over.

References are documents that a condition chooses, or files. Models are trained per language as
identified (`per_language`) or over all. Nothing is scored by a model that has read it: texts fall
into `folds` by a hash, model f is trained on the other folds and scores fold f. Languages with less
than `min_reference_bytes` of reference have no model: their documents score null. Models of KenLM
can be given instead, by language (needs the package `kenlm`): they read units joined by spaces.
Cost: training sorts the reference once per order; scoring is a table look-up per unit and order.
Left out: pruning; cut-offs, which `quality.limits` has.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llm_core.config import NOT_IN_KEY, ConfigError
from tasks.corpus.language_labels import check_label
from tasks.corpus.named_labels import IS_CONDITION, NAMES_LANGUAGES, NAMES_LANGUAGES_OR_ANY
from tasks.runtime.inputs import load_once
from tasks.scores.language_model import NgramModel
from tasks.scores.unit_rows import UnitRows, check_folds, check_positive, spaced_units

ANY_LANGUAGE = ""
ANY = "any"
"""What `kenlm_models` calls all languages."""


@dataclass(frozen=True)
class PerplexityConfig:
    """What a language model is trained on, or which models are given."""

    reference: str | None = field(default=None, metadata=IS_CONDITION)
    """Condition on documents that selects good text, as in `metadata->>'kind' = 'prose'`."""
    reference_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Further reference texts: .jsonl, .parquet, .txt, .md, all in `reference_language`. Contents
    are part of the key."""
    reference_language: str | None = field(default=None, metadata=NAMES_LANGUAGES)
    """Language of the files; needed where models are per language."""
    text_column: str = "text"
    """Column of those files that holds the text."""
    kenlm_models: dict[str, Path] = field(
        default_factory=dict, metadata={**NOT_IN_KEY, **NAMES_LANGUAGES_OR_ANY}
    )
    """{language: KenLM model} to apply; `any` for all languages. Nothing is trained then. Contents
    are part of the key."""
    per_language: bool = True
    """Train one model for each identified language; false trains one for all documents."""
    order: int = 3
    """Longest n-gram, in units."""
    prefix_bytes: int = 20_000
    """UTF-8 bytes read of each document, and of each reference text."""
    max_reference_bytes: int = 20_000_000
    """Largest amount of reference text per model, chosen by hash."""
    min_reference_bytes: int = 20_000
    """Languages with less reference text get no model."""
    folds: int = 2
    """Models per language; each scores the documents that it was not trained on."""
    seed: int = 0
    """Another seed chooses other references and folds."""

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 6:
            raise ConfigError(f"order ({self.order}) must be from 1 to 6; try 3")
        check_positive(self, "prefix_bytes", "max_reference_bytes", "min_reference_bytes")
        check_folds(self.folds, self.seed)
        for name, labels in (
            ("reference_language", (self.reference_language,)),
            ("kenlm_models", self.kenlm_models),
        ):
            for label in labels:
                if label is not None and label != ANY:
                    check_label(label, name)
        if self.kenlm_models and (self.reference or self.reference_files):
            raise ConfigError(
                "kenlm_models and reference exclude each other; give models or what to train"
                " them on"
            )
        if not (self.kenlm_models or self.reference or self.reference_files):
            raise ConfigError(
                "a perplexity needs reference (a condition), reference_files or kenlm_models; give"
                " one of them"
            )
        if self.reference_files and self.per_language and not self.reference_language:
            raise ConfigError(
                "reference_files need reference_language where models are per language; e.g."
                " reference_language=en"
            )

    @property
    def trains(self) -> bool:
        return not self.kenlm_models


def log10_probabilities(rows: UnitRows, model_file: Path) -> np.ndarray:
    """log10 p of each row with its end under a model that was trained here."""
    return _load_ngrams(model_file).log10_probabilities(rows)


def kenlm_log10_probabilities(texts: Sequence[str], model_file: Path) -> np.ndarray:
    """The same under a KenLM model, which reads lower-cased units with one space between them."""
    model = _load_kenlm(model_file)
    scores = [model.score(spaced_units(text), bos=True, eos=True) for text in texts]
    return np.array(scores, np.float64)


def perplexities(log10_probs: np.ndarray, num_units: np.ndarray) -> np.ndarray:
    """float32 perplexity per text, NaN where it has no unit."""
    largest = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        values = np.minimum(10 ** (-log10_probs / (num_units + 1)), largest).astype(np.float32)
    values[num_units == 0] = np.nan
    return values


def require_kenlm() -> None:
    """Raise ConfigError unless KenLM can be imported."""
    if importlib.util.find_spec("kenlm") is None:
        raise ConfigError(
            "kenlm_models needs the package kenlm; run pip install 'textmill[kenlm]', or give"
            " reference to train a model here"
        )


_load_ngrams = functools.lru_cache(maxsize=8)(NgramModel.load)


@load_once(8)
def _load_kenlm(model_file: Path) -> Any:
    import kenlm

    try:
        return kenlm.Model(str(model_file))
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"kenlm_models: {model_file} is not a KenLM model; give an .arpa or .binary file"
        ) from error

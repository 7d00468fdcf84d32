"""The classifier learns by AdaGrad on the log loss from lines that hide no label."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.scores.classifier import ClassifierConfig, classify, text_line, train_classifier
from tasks.scores.unit_rows import UnitRows, spaced_units


def test_a_line_for_fasttext_hides_no_label_and_no_end() -> None:
    config = ClassifierConfig(model_path=Path("x"))
    assert text_line(" a\n\nb\tc ", config) == "a b c"
    assert text_line("__label__hq x </s> y", config).split() == [
        "__label",
        "__hq",
        "x",
        "<",
        "/s>",
        "y",
    ]
    assert text_line("héé", ClassifierConfig(model_path=Path("x"), prefix_bytes=4)) == "hé"


def test_units_are_written_with_spaces_for_models_that_read_text() -> None:
    assert spaced_units("Good-bye,\n世界! Ça") == "good bye 世 界 ça"


def test_training_follows_adagrad_on_the_log_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 12))) for _ in range(30)]
    positive = np.array(["a" in text for text in texts])
    rows = UnitRows.of_texts(pa.array(texts, pa.large_string()), 1000)
    config = ClassifierConfig(positives="x", epochs=3, bits=24, lr=0.5)
    train_classifier(rows, positive, config, tmp_path / "model")
    weights: dict[tuple[str, ...], float] = {}
    squares: dict[tuple[str, ...], float] = {}
    bias = bias_squares = 0.0

    def margin(grams: list[tuple[str, ...]]) -> float:
        return bias + sum(weights.get(g, 0.0) for g in grams) / math.sqrt(len(grams))

    features = []
    for text in texts:
        words = text.split()
        features.append(
            [
                tuple(words[i:j])
                for i in range(len(words))
                for j in (i + 1, i + 2)
                if j <= len(words)
            ]
        )
    for _ in range(3):
        for grams, told in zip(features, positive, strict=True):
            error = 1 / (1 + math.exp(-margin(grams))) - told
            bias_squares += error**2
            bias -= 0.5 * error / math.sqrt(bias_squares)
            for gram in grams:
                gradient = error / math.sqrt(len(grams))
                squares[gram] = squares.get(gram, 0.0) + gradient**2
                weights[gram] = weights.get(gram, 0.0) - 0.5 * gradient / math.sqrt(squares[gram])
    expected = [1 / (1 + math.exp(-margin(grams))) for grams in features]
    assert classify(rows, np.arange(30), tmp_path / "model") == pytest.approx(
        expected, rel=1e-3, abs=1e-5
    )

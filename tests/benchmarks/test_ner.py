"""Invented sentences with names: their spans, that the holdout is one, and the way from a random
start to numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.data.ner_sentences import HOLDOUT, LANGUAGES, TRAINING, sentences


def test_spans_of_sentences_are_what_was_put_in() -> None:
    made = list(sentences(40, TRAINING, 1))
    assert len(made) == 40 * len(LANGUAGES)
    for _, text, spans in made:
        assert all(text[start:end].strip() == text[start:end] != "" for start, end, _ in spans)
    assert {kind for *_, spans in made for *_, kind in spans} == {
        "NAME", "POSTAL_ADDRESS", "DATE_OF_BIRTH",
    }  # fmt: skip
    assert made == list(sentences(40, TRAINING, 1))


def test_no_template_and_hardly_a_name_of_the_holdout_was_seen_in_training() -> None:
    for language in LANGUAGES:
        assert not set(TRAINING[language].splitlines()) & set(HOLDOUT[language].splitlines())

    def names(templates: dict[str, str], seed: int) -> set[str]:
        return {
            text[start:end]
            for language, text, spans in sentences(100, templates, seed)
            for start, end, kind in spans
            if kind == "NAME" and language != "zh"
        }

    seen, held_out = names(TRAINING, 1), names(HOLDOUT, 2)
    assert len(held_out) > 200 and len(seen & held_out) <= 2


def test_a_trained_folder_is_measured_with_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from benchmarks.data import ner

    train = ner.train
    monkeypatch.setattr(ner, "train", lambda folder: train(folder, count=12, steps=2))
    assert ner.main(["--train", str(tmp_path / "model"), "10"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ner.main([str(tmp_path / "model"), "10"]) == 0
    second = json.loads(capsys.readouterr().out.splitlines()[-1])
    counts = [name for name in first if name.endswith("_count")]
    assert len(counts) == 2 * 3 * (1 + len(LANGUAGES))
    assert [first[name] for name in counts] == [second[name] for name in counts]
    assert first["NAME_recall_count"][1] == 5 * 8 and second["mb_per_s"] > 0
    assert ner.main([]) == 2

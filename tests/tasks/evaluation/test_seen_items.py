"""Items that occur in the training shards are found there, and the others are scored beside all."""

import dataclasses
from pathlib import Path

import pytest

from tasks.contamination.config import ContaminationConfig
from tasks.evaluation import seen_items as module
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, SuitesConfig
from tasks.evaluation.seen_items import Seen, seen_items
from tasks.evaluation.stage import evaluate_model
from tasks.evaluation.suite_results import for_tracking, read_rows, read_suites
from tasks.runtime.parts import serial
from tests.support.data.trained_run import Run, words_of
from tests.support.data.written_suites import question
from tests.tasks.evaluation.conftest import Write


@pytest.fixture
def suites(small_run: Run, write_suite: Write) -> Path:
    unheard = "violet engineers seldom argue about seventeen cheerful walruses in the abandoned"
    items = [
        question("trained", words_of(small_run, "train", 5, 20), ["a", "b"], 0),
        question("held-out", words_of(small_run, "validation", 5, 20), ["a", "b"], 1),
        question("nowhere", f"{unheard} lighthouse of", ["a", "b"], 0),
        question("short", "The file of", ["a", "b"], 1),
        question("also trained", words_of(small_run, "train", 8, 25, 3), ["a", "b"], 1),
    ]
    return write_suite("mine", items).parent


def test_only_items_in_training_documents_are_seen_however_shards_are_read(
    small_run: Run, suites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(small_run.shards.files("train-*.arrow")) > 2
    searched, config = SuitesConfig((suites,)).searched(), ContaminationConfig()

    def look(name: str) -> dict[str, Seen]:
        out = tmp_path / name
        return seen_items(small_run.shards, small_run.tokenizer, searched, config, out, serial)

    whole = look("whole")
    assert whole == {"mine": Seen(frozenset({0, 4}), searched=4)}
    monkeypatch.setattr(module, "BLOCK_TOKENS", 1)
    assert look("by document") == whole


def test_the_clean_score_stands_beside_that_of_all_items(
    small_run: Run, suites: Path, tmp_path: Path
) -> None:
    scoring = EvaluateConfig(bootstrap_samples=200, sample_prompts=(), num_document_prompts=0)
    config = EvaluateStageConfig(scoring, suites=SuitesConfig((suites,)))
    parents = small_run.documents, small_run.tokenizer, small_run.shards, small_run.train
    (tmp_path / "out").mkdir()
    made = evaluate_model(*parents, tmp_path / "out", config)
    suite, rows = made.metrics["suites"]["mine"], read_rows(made)["mine"]
    assert [row["item"] for row in rows if row["is_in_training"]] == ["trained", "also trained"]
    assert suite["searched_in_training"] == 4 and suite["clean"]["items"] == 3
    assert read_suites(made) == made.metrics["suites"]
    difference = suite["clean"]["difference"]["value"]
    assert difference == suite["clean"]["value"] - suite["metrics"]["acc"]["value"]
    told = for_tracking(made.metrics["suites"])["mine"]
    assert told["acc_clean"] == suite["clean"]["value"] and "acc_clean_gain_low" in told
    none = dataclasses.replace(config.contamination, min_units=60, ngram_units=60)
    (tmp_path / "none").mkdir()
    config = dataclasses.replace(config, contamination=none)
    clean = evaluate_model(*parents, tmp_path / "none", config).metrics
    found = clean["suites"]["mine"]["clean"]
    assert found["items"] == 5 and found["difference"]["value"] == 0.0
    assert "acc_clean" not in clean["eval"]["mine"]

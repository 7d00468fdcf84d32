"""Other models are scored on what the run's own model is scored on, and differences are paired."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from llm_core.huggingface.export import load_model
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, SuitesConfig
from tasks.evaluation.stage import evaluate_model
from tasks.evaluation.suite_results import read_rows, read_suites
from tasks.runtime.artifact import Artifact
from tests.support.data.trained_run import Run, publish, save_model, words_of
from tests.support.data.written_suites import question
from tests.tasks.evaluation.conftest import Write

SCORING = EvaluateConfig(bootstrap_samples=200, sample_prompts=(), num_document_prompts=0)


def evaluate(run: Run, out: Path, suites: Path | None = None, **settings: Any) -> Artifact:
    out.mkdir()
    scoring = dataclasses.replace(SCORING, **settings)
    folders = () if suites is None else (suites,)
    config = EvaluateStageConfig(scoring, suites=SuitesConfig(folders))
    return evaluate_model(run.documents, run.tokenizer, run.shards, run.train, out, config)


@pytest.fixture
def suites(small_run: Run, write_suite: Write) -> Path:
    items = [question("trained", words_of(small_run, "train", 5, 20), ["list", "king"], 0)]
    items += [
        question(str(n), f"The {word} of the", ["list", "king", "file"], n % 3)
        for n, word in enumerate(["apache", "package", "version", "name", "line", "lord"])
    ]
    return write_suite("mine", items).parent


def test_the_same_model_in_a_folder_has_the_same_scores_and_no_difference(
    small_run: Run, suites: Path, tmp_path: Path
) -> None:
    folder = publish(small_run, tmp_path / "same", 4.0)
    made = evaluate(small_run, tmp_path / "out", suites, folder=folder, window_tokens=96)
    beside = made.metrics["beside"]
    for end in ("value", "low", "high"):
        assert beside["val_bpb"][end] == pytest.approx(made.metrics["val_bpb"][end], abs=2e-5)
    assert beside["difference"]["value"] == pytest.approx(0, abs=2e-5)
    assert beside["suites"]["mine"]["metrics"] == made.metrics["suites"]["mine"]["metrics"]
    difference = beside["suite_differences"]["mine"]
    assert difference["value"] == 0 and difference["p_value_of_all"] == 1
    assert read_suites(made) == made.metrics["suites"]


def test_a_folder_is_named_as_it_lies_however_it_is_written(
    small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(publish(small_run, tmp_path / "same", 4.0))
    made = evaluate(small_run, tmp_path / "out", folder=Path("."), window_tokens=96)
    assert made.metrics["beside"]["name"] == "model"


def test_another_model_is_compared_on_the_same_documents_and_items(
    small_run: Run, suites: Path, tmp_path: Path
) -> None:
    folder = publish(small_run, tmp_path / "other", 0.5)
    made = evaluate(small_run, tmp_path / "out", suites, folder=folder, window_tokens=96)
    own, beside = made.metrics, made.metrics["beside"]
    gain = beside["val_bpb"]["value"] - own["val_bpb"]["value"]
    assert beside["difference"]["value"] == pytest.approx(gain, abs=2e-5) and gain < -1
    assert beside["difference"]["high"] < 0
    items = [[row["item"] for row in read_rows(made, name)["mine"]] for name in ("", "folder")]
    assert items[0] == items[1]
    seen = [
        [row["item"] for row in read_rows(made, name)["mine"] if row["is_in_training"]]
        for name in ("", "folder")
    ]
    assert seen == [["trained"], []]


def test_weights_in_fewer_bits_are_scored_with_the_bytes_they_take(
    small_run: Run, tmp_path: Path
) -> None:
    made = evaluate(small_run, tmp_path / "out", formats=("int8", "int4"))
    found = made.metrics["formats"]
    whole = found.pop("trained")
    assert whole["val_bpb"]["value"] == made.metrics["val_bpb"]["value"]
    assert all(one["weight_bytes"] < whole["weight_bytes"] for one in found.values())
    rough, fine = (abs(found[name]["difference"]["value"]) for name in ("int4", "int8"))
    assert 0 < fine < rough
    for one in found.values():
        gain = one["val_bpb"]["value"] - made.metrics["val_bpb"]["value"]
        assert one["difference"]["value"] == pytest.approx(gain, abs=2e-5)


def test_checkpoints_give_a_curve_that_ends_with_the_last_model(
    small_run: Run, suites: Path, tmp_path: Path
) -> None:
    train = trained(small_run, tmp_path / "train")
    run = dataclasses.replace(small_run, train=train)
    made = evaluate(run, tmp_path / "out", suites, checkpoints=(20, 10), window_tokens=64)
    curve = made.metrics["curves"]["mine"]
    assert curve["metric"] == "acc"
    assert [(p["step"], p["tokens"]) for p in curve["points"]] == [
        (step, step * 8 * 64) for step in (10, 20, 30)
    ]
    assert curve["points"][-1]["value"] == made.metrics["suites"]["mine"]["metrics"]["acc"]["value"]
    alone = evaluate(
        dataclasses.replace(run, train=Artifact(train.path / "alone", "train")),
        tmp_path / "alone",
        suites,
        window_tokens=64,
    )
    scores = [
        [row["choices"] for row in read_rows(*each)["mine"]]
        for each in ((made, "step-10"), (alone, ""), (made, ""))
    ]
    assert scores[0] == scores[1] != scores[2]
    with pytest.raises(ConfigError, match=r"checkpoints \(15\).*\(10, 20\).*keep_models_every"):
        evaluate(run, tmp_path / "missing", suites, checkpoints=(15,))


def trained(run: Run, folder: Path) -> Artifact:
    """A train artifact that keeps models of steps 10 and 20, and the first once more alone."""
    shutil.copytree(run.train.path / "model", folder / "model")
    vocab_size = load_model(run.train.path / "model").config.vocab_size
    for step, scale in ((10, 1.0), (20, 2.0)):
        place = folder / f"models/step-{step:08d}"
        save_model(folder / "made", vocab_size, scale)
        shutil.move(folder / "made/model", place)
    shutil.copytree(folder / "models/step-00000010", folder / "alone/model")
    settings = {"global_batch_sequences": 8, "seq_len": 64, "num_steps": 30}
    record = {"config": {"train": settings}}
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    record["files"] = [{"path": name} for name in files]  # type: ignore[assignment]
    return Artifact(folder, "train", record=record)


def test_a_folder_without_a_model_is_one_line(small_run: Run, tmp_path: Path) -> None:
    config = EvaluateStageConfig(dataclasses.replace(SCORING, folder=tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"evaluate.folder .* is not a folder of a model"):
        config.input_files()
    with pytest.raises(ConfigError, match=r"has no config.json|not a folder"):
        evaluate(small_run, tmp_path / "out", folder=tmp_path)


def test_a_folder_whose_tokens_lose_text_has_suites_and_no_bits(
    small_run: Run, suites: Path, tmp_path: Path
) -> None:
    folder = publish(small_run, tmp_path / "lossy", 4.0)
    described = json.loads((folder / "tokenizer.json").read_text())
    described["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    beside = evaluate(small_run, tmp_path / "out", suites, folder=folder).metrics["beside"]
    assert "texts back" in beside["no_bits"] and "val_bpb" not in beside
    assert beside["suites"]["mine"]["items"] == 7

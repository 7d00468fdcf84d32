"""The stage leaves a model, its curves and facts, or fails in one line with the reason."""

import dataclasses
import json
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import key_config
from tasks.runtime.stage import StageFailure
from tasks.training.stage import resolve, train_model
from tests.support.engine.small_runs import MODEL, TRAIN, VOCAB_SIZE
from tests.support.engine.staged_training import CONFIG, workdir


def test_stage_leaves_a_model_its_curves_and_facts(
    parents: tuple[Artifact, Artifact], out_dir: Path
) -> None:
    made = train_model(*parents, out_dir, CONFIG)
    assert sorted(p.relative_to(out_dir).as_posix() for p in out_dir.rglob("*") if p.is_file()) == [
        "metrics.jsonl",
        "model/config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
        "model_config.json",
    ]
    rows = read_rows(out_dir / "metrics.jsonl")
    assert (
        made.metrics["final_train_loss"]
        == [row for row in rows if "train_loss" in row][-1]["train_loss"]
    )
    assert made.metrics["val_bpb"] == rows[-1]["val_bpb"] > 0
    assert [point["step"] for point in made.metrics["curve"]] == list(range(1, TRAIN.num_steps + 1))
    assert made.metrics["num_parameters"] == MODEL.num_parameters()
    assert made.metrics["tokens_per_s"] > 0
    assert (
        json.loads((out_dir / "model_config.json").read_text("utf-8"))["vocab_size"] == VOCAB_SIZE
    )
    json.dumps([made.metrics, made.counters], allow_nan=False)


def test_a_failing_trainer_fails_the_stage_with_its_last_words(
    parents: tuple[Artifact, Artifact], out_dir: Path
) -> None:
    (parents[1].path / "validation-00000.arrow").unlink()
    with pytest.raises(
        StageFailure,
        match=r"training failed: no shards of split 'validation'(?s:.*)whole log: .*trainer.log",
    ):
        train_model(*parents, out_dir, CONFIG)


def test_damage_is_one_line_that_names_the_way_out_and_a_restart_is_told_as_it_happens(
    parents: tuple[Artifact, Artifact], out_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_model(*parents, out_dir, CONFIG)
    for file in (workdir(out_dir) / "checkpoints").glob("step-*/progress.json"):
        file.unlink()
    capsys.readouterr()
    with pytest.raises(
        StageFailure, match=r"training failed: .* none is sound .*train\.restart=true"
    ) as failed:
        train_model(*parents, out_dir, CONFIG)
    assert len(str(failed.value).splitlines()) == 2, "and where the log is"
    told = [line for line in capsys.readouterr().err.splitlines() if "damaged_checkpoint" in line]
    assert len(told) == 2 and all("progress.json is missing; kept as " in line for line in told)
    made = train_model(
        *parents,
        out_dir,
        dataclasses.replace(CONFIG, train=dataclasses.replace(TRAIN, restart=True)),
    )
    assert made.metrics["events"] == {"damaged_checkpoint": 2, "restarted": 1}
    assert "train: restarted (step 0): " in capsys.readouterr().err


def test_vocabulary_comes_from_the_tokenizer_or_holds_it(
    parents: tuple[Artifact, Artifact],
) -> None:
    assert resolve(CONFIG, *parents).model.vocab_size == VOCAB_SIZE
    padded = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, vocab_size=64))
    assert resolve(padded, *parents).model.vocab_size == 64
    small = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, vocab_size=50))
    with pytest.raises(ConfigError, match=r"vocab_size \(50\) is less than the 51 ids"):
        resolve(small, *parents)


def test_layout_and_pace_of_logging_are_in_no_key() -> None:
    train = dataclasses.replace(TRAIN, micro_batch_sequences=4, checkpoint_every=1, log_every=9)
    other = dataclasses.replace(CONFIG, train=train, parallel=ParallelConfig("ddp", 2))
    assert key_config(other) == key_config(CONFIG)
    assert key_config(
        dataclasses.replace(CONFIG, train=dataclasses.replace(TRAIN, seed=8))
    ) != key_config(CONFIG)

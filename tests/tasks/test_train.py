import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.metric_log import read_rows, read_status
from tasks.artifact import Artifact
from tasks.keys import ROOT, key_config
from tasks.parts import scratch_dir
from tasks.stage import StageFailure, StageInterrupted
from tasks.train import TrainStageConfig, resolve, tokens_per_s, train_model
from tests.llm_core.small_runs import MODEL, OPTIM, TRAIN, VOCAB_SIZE, write_bytes_per_token, write_token_shards

CONFIG = TrainStageConfig(dataclasses.replace(MODEL, vocab_size=0), OPTIM, TRAIN)
LONG = dataclasses.replace(
    CONFIG, train=dataclasses.replace(TRAIN, num_steps=100_000, checkpoint_every=100_000, validate_every=0)
)


@pytest.fixture
def parents(tmp_path: Path) -> tuple[Artifact, Artifact]:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    write_bytes_per_token(tokenizer / "bytes_per_token.npy")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / name).write_text("{}", "utf-8")
    return Artifact(tokenizer, "tokenizer"), Artifact(write_token_shards(tmp_path / "shards"), "shards")


def workdir(out_dir: Path) -> Path:
    (found,) = scratch_dir(out_dir).glob("run-*")
    return found


def test_stage_leaves_a_model_its_curves_and_facts(parents: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()
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
    assert made.metrics["final_train_loss"] == [row for row in rows if "train_loss" in row][-1]["train_loss"]
    assert made.metrics["val_bpb"] == rows[-1]["val_bpb"] > 0
    assert [point["step"] for point in made.metrics["curve"]] == list(range(1, TRAIN.num_steps + 1))
    assert made.metrics["num_parameters"] == MODEL.num_parameters()
    assert made.metrics["tokens_per_s"] > 0
    assert json.loads((out_dir / "model_config.json").read_text("utf-8"))["vocab_size"] == VOCAB_SIZE
    json.dumps([made.metrics, made.counters], allow_nan=False)


def test_a_break_while_waiting_stops_the_trainer_after_it_saved(
    parents: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()

    def interrupt(_self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("tasks.progress.TrainingProgress.show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_model(*parents, out_dir, LONG)
    status = read_status(workdir(out_dir) / "status.json")
    assert status["outcome"] == "preempted"
    (checkpoint,) = (workdir(out_dir) / "checkpoints").glob("step-*")
    assert checkpoint.name == f"step-{status['step']:08d}"


def test_a_trainer_asked_to_stop_interrupts_the_stage(
    parents: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()

    def stop_trainer(self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3 and not hasattr(self, "asked"):
            self.asked = True  # type: ignore[attr-defined]
            os.kill(trainer_of(work), signal.SIGTERM)

    monkeypatch.setattr("tasks.progress.TrainingProgress.show", stop_trainer)
    with pytest.raises(StageInterrupted, match=r"training stopped at step \d+ of 100000 and saved"):
        train_model(*parents, out_dir, LONG)


def trainer_of(work: Path) -> int:
    """The trainer's process id, from the lock it holds."""
    inode = (work / "trainer.lock").stat().st_ino
    for line in Path("/proc/locks").read_text("utf-8").splitlines():
        fields = line.split()
        if fields[-3].endswith(f":{inode}"):
            return int(fields[-4])
    raise AssertionError("nobody holds the lock")


def test_a_failing_trainer_fails_the_stage_with_its_last_words(parents: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    (parents[1].path / "validation-00000.arrow").unlink()
    with pytest.raises(StageFailure, match=r"training failed: no shards of split 'validation'(?s:.*)whole log: .*trainer.log"):
        train_model(*parents, out_dir, CONFIG)


def test_a_trainer_outlives_no_killed_parent_and_loses_no_step(parents: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    script = (
        "import sys; from pathlib import Path; from tests.tasks.test_train import LONG; from tasks.train import train_model\n"
        "from tasks.artifact import Artifact; root = Path(sys.argv[1]); (root / 'out').mkdir()\n"
        "train_model(Artifact(root / 'tokenizer', 'tokenizer'), Artifact(root / 'shards', 'shards'), root / 'out', LONG)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    while parent.poll() is None and not any(read_rows(p) for p in tmp_path.glob("out.work/run-*/metrics.jsonl")):
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while read_status(workdir(out_dir) / "status.json")["outcome"] == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read_status(workdir(out_dir) / "status.json")["outcome"] == "preempted"
    assert list((workdir(out_dir) / "checkpoints").glob("step-*"))


def test_vocabulary_comes_from_the_tokenizer_or_holds_it(parents: tuple[Artifact, Artifact]) -> None:
    assert resolve(CONFIG, *parents).model.vocab_size == VOCAB_SIZE
    padded = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, vocab_size=64))
    assert resolve(padded, *parents).model.vocab_size == 64
    small = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, vocab_size=50))
    with pytest.raises(ConfigError, match=r"vocab_size \(50\) must hold the 51 ids"):
        resolve(small, *parents)


def test_layout_and_pace_of_logging_are_in_no_key() -> None:
    from llm_core.train_config import ParallelConfig

    train = dataclasses.replace(TRAIN, micro_batch_sequences=4, checkpoint_every=1, log_every=9)
    other = dataclasses.replace(CONFIG, train=train, parallel=ParallelConfig("ddp", 2))
    assert key_config(other) == key_config(CONFIG)
    assert key_config(dataclasses.replace(CONFIG, train=dataclasses.replace(TRAIN, seed=8))) != key_config(CONFIG)


def test_speed_is_the_median_over_logged_stretches() -> None:
    timing = [{"num_steps": 1, "elapsed_s": 9.0}, {"num_steps": 2, "elapsed_s": 1.0}, {"num_steps": 4, "elapsed_s": 2.0}]
    assert tokens_per_s(timing, 100) == 200.0

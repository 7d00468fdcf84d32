import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.services.processes import descendants
from llm_core.config import ConfigError
from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from tasks.runtime.artifact import Artifact
from tasks.runtime.code import ROOT
from tasks.runtime.keys import key_config
from tasks.runtime.parts import scratch_dir
from tasks.runtime.stage import StageFailure, StageInterrupted
from tasks.training.config import TrainStageConfig
from tasks.training.stage import resolve, run_trainer, train_model
from tasks.training.training_speed import series, tokens_per_s
from tests.support.engine.small_runs import (
    MODEL,
    OPTIM,
    TRAIN,
    VOCAB_SIZE,
    write_bytes_per_token,
    write_token_shards,
)

CONFIG = TrainStageConfig(dataclasses.replace(MODEL, vocab_size=0), OPTIM, TRAIN)
LONG = dataclasses.replace(
    CONFIG,
    train=dataclasses.replace(TRAIN, num_steps=100_000, checkpoint_every=100_000, validate_every=0),
)


@pytest.fixture
def parents(tmp_path: Path) -> tuple[Artifact, Artifact]:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    write_bytes_per_token(tokenizer / "bytes_per_token.npy")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / name).write_text("{}", "utf-8")
    return Artifact(tokenizer, "tokenizer"), Artifact(
        write_token_shards(tmp_path / "shards"), "shards"
    )


def workdir(out_dir: Path) -> Path:
    (found,) = scratch_dir(out_dir).glob("run-*")
    return found


def test_stage_leaves_a_model_its_curves_and_facts(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
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


def test_a_break_while_waiting_stops_the_trainer_after_it_saved(
    parents: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()

    def interrupt(_self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_model(*parents, out_dir, LONG)
    status = read_status(workdir(out_dir) / "status.json")
    assert status["outcome"] == "preempted"
    (checkpoint,) = (workdir(out_dir) / "checkpoints").glob("step-*")
    assert checkpoint.name == f"step-{status['step']:08d}"


@pytest.mark.slow
def test_torchrun_of_two_processes_finishes_and_saves_when_stopped(
    parents: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = ParallelConfig("ddp", 2, device="cpu", num_threads=1)
    (tmp_path / "short").mkdir()
    made = train_model(*parents, tmp_path / "short", dataclasses.replace(CONFIG, parallel=parallel))
    assert made.metrics["layout"] == {"kind": "ddp", "num_processes": 2, "num_threads": 1}

    def interrupt(_self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", interrupt)
    (tmp_path / "long").mkdir()
    with pytest.raises(KeyboardInterrupt):
        train_model(*parents, tmp_path / "long", dataclasses.replace(LONG, parallel=parallel))
    assert read_status(workdir(tmp_path / "long") / "status.json")["outcome"] == "preempted"


def test_a_trainer_asked_to_stop_interrupts_the_stage(
    parents: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()

    def stop_trainer(self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3 and not hasattr(self, "asked"):
            self.asked = True  # type: ignore[attr-defined]
            os.kill(trainer_of(work), signal.SIGTERM)

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", stop_trainer)
    with pytest.raises(StageInterrupted, match=r"training stopped at step \d+ of 100000 and saved"):
        train_model(*parents, out_dir, LONG)


class Terminated(BaseException):
    """SIGTERM, as a flow turns it into Python."""


# It ends with 1, as torchrun does.
SAVING = """trap 'echo "{\\"outcome\\": \\"preempted\\", \\"step\\": 3}" > status.json; exit 1' TERM
touch ready; while :; do sleep 0.02; done"""


@pytest.mark.parametrize(
    ("stop", "told"),
    [(Terminated, StageInterrupted), (KeyboardInterrupt, KeyboardInterrupt), (KeyError, KeyError)],
)
def test_a_stage_stopped_by_a_signal_says_that_training_saved_and_a_defect_stays_one(
    stop: type[BaseException],
    told: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "tasks.training.stage.trainer_command", lambda run, workdir: ["bash", "-c", SAVING]
    )

    def interrupt(work: Path) -> None:
        if (work / "ready").exists():
            raise stop

    run = RunConfig(
        dataclasses.replace(MODEL, vocab_size=VOCAB_SIZE),
        OPTIM,
        TRAIN,
        ParallelConfig(),
        tmp_path,
        tmp_path,
    )
    with pytest.raises(told):
        run_trainer(run, tmp_path, interrupt)


@pytest.mark.parametrize(("grace_s", "outcome"), [(0.2, "died"), (60.0, "preempted")])
def test_a_trainer_has_the_time_to_save_that_it_is_given(
    grace_s: float,
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    slow = SAVING.replace("trap '", "trap 'sleep 1; ")
    monkeypatch.setattr(
        "tasks.training.stage.trainer_command", lambda run, workdir: ["bash", "-c", slow]
    )

    def interrupt(work: Path) -> None:
        if (work / "ready").exists():
            raise KeyboardInterrupt

    train = dataclasses.replace(TRAIN, grace_s=grace_s)
    run = RunConfig(
        dataclasses.replace(MODEL, vocab_size=VOCAB_SIZE),
        OPTIM,
        train,
        ParallelConfig(),
        tmp_path,
        tmp_path,
    )
    with pytest.raises(KeyboardInterrupt):
        run_trainer(run, tmp_path, interrupt)
    assert read_status(tmp_path / "status.json")["outcome"] == outcome
    assert ("train.grace_s" in capsys.readouterr().err) == (outcome == "died")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
def test_a_trainer_that_dies_without_a_word_is_said_to_have_died_and_of_what(
    number: signal.Signals,
    parents: tuple[Artifact, Artifact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()

    killed: list[int] = []

    def kill_trainer(_self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3 and not killed:
            killed.append(trainer_of(work))
            os.kill(killed[0], number)

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", kill_trainer)
    with pytest.raises(
        StageFailure, match=rf"training failed: the trainer was ended by {number.name} .*run again"
    ):
        train_model(*parents, out_dir, LONG)
    status = read_status(workdir(out_dir) / "status.json")
    assert status["outcome"] == "died" and number.name in status["cause"]
    assert number != signal.SIGBUS or re.search(r"GB are free in", status["cause"])
    # One that does not even begin is not taken for the one before.
    monkeypatch.setattr(
        "tasks.training.stage.trainer_command", lambda run, workdir: ["bash", "-c", "exit 3"]
    )
    with pytest.raises(StageFailure, match="the trainer ended with code 3"):
        train_model(*parents, out_dir, LONG)


@pytest.mark.slow
def test_of_several_processes_the_first_that_died_is_named(
    parents: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()

    killed: list[int] = []

    def kill_the_second(_self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3 and not killed:
            ranks = [
                pid
                for pid in descendants([os.getpid()])
                if b"llm_core.training.train" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            killed.append(ranks[-1])
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", kill_the_second)
    parallel = ParallelConfig("ddp", 2, device="cpu", num_threads=1)
    with pytest.raises(
        StageFailure, match=r"training failed: rank 1 \(process \d+\) was ended by SIGKILL"
    ):
        train_model(*parents, out_dir, dataclasses.replace(LONG, parallel=parallel))
    assert read_status(workdir(out_dir) / "status.json")["outcome"] == "died"


def trainer_of(work: Path) -> int:
    """The trainer's process id, from the lock it holds."""
    inode = (work / "trainer.lock").stat().st_ino
    for line in Path("/proc/locks").read_text("utf-8").splitlines():
        fields = line.split()
        if fields[-3].endswith(f":{inode}"):
            return int(fields[-4])
    raise AssertionError("nobody holds the lock")


def test_a_failing_trainer_fails_the_stage_with_its_last_words(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    (parents[1].path / "validation-00000.arrow").unlink()
    with pytest.raises(
        StageFailure,
        match=r"training failed: no shards of split 'validation'(?s:.*)whole log: .*trainer.log",
    ):
        train_model(*parents, out_dir, CONFIG)


def test_damage_is_one_line_that_names_the_way_out_and_a_restart_is_told_as_it_happens(
    parents: tuple[Artifact, Artifact], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()
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


def test_a_trainer_outlives_no_killed_parent_and_loses_no_step(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out_dir = tmp_path / "out"
    script = (
        "import sys; from pathlib import Path; from tests.tasks.training.test_train import LONG;"
        " from tasks.training.stage import train_model\nfrom tasks.runtime.artifact import"
        " Artifact; root = Path(sys.argv[1]); (root / 'out').mkdir()\ntrain_model(Artifact(root /"
        " 'tokenizer', 'tokenizer'), Artifact(root / 'shards', 'shards'), root / 'out', LONG)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    while parent.poll() is None and not any(
        read_rows(p) for p in tmp_path.glob("out.work/run-*/metrics.jsonl")
    ):
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while (
        read_status(workdir(out_dir) / "status.json")["outcome"] == "running"
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert read_status(workdir(out_dir) / "status.json")["outcome"] == "preempted"
    assert list((workdir(out_dir) / "checkpoints").glob("step-*"))


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


def test_speed_is_the_median_over_logged_stretches() -> None:
    timing = [
        {"num_steps": 1, "elapsed_s": 9.0},
        {"num_steps": 2, "elapsed_s": 1.0},
        {"num_steps": 4, "elapsed_s": 2.0},
    ]
    assert tokens_per_s(timing, 100) == 200.0


def test_a_series_of_speed_joins_stretches_and_keeps_the_whole() -> None:
    timing = [
        {
            "step": k + 1,
            "elapsed_s": 1.0 + k % 3,
            "tokens_per_s": 100.0 * (k + 1),
            "data_wait_s": 0.5 * (k % 2),
        }
        | {"max_memory_bytes": k % 7, "slowest_rank": k % 4, "slowest_pace": 1.0 + (k == 4)}
        for k in range(10)
    ]
    tokens = sum(row["tokens_per_s"] * row["elapsed_s"] for row in timing)
    found = series(timing, 4)
    assert [row["step"] for row in found] == [3, 6, 9, 10]
    times = [
        sum(row["elapsed_s"] for row in timing[begin : begin + 3]) for begin in range(0, 10, 3)
    ]
    assert sum(
        row["tokens_per_s"] * time for row, time in zip(found, times, strict=True)
    ) == pytest.approx(tokens)
    assert [row["max_memory_bytes"] for row in found] == [2, 5, 6, 2]
    assert (found[1]["slowest_rank"], found[1]["slowest_pace"]) == (0, 2.0)
    assert [row["tokens_per_s"] for row in series(timing)] == [
        row["tokens_per_s"] for row in timing
    ]

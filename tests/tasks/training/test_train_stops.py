"""A trainer that is stopped or dies is named with its cause, and saves if it can."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.services.processes import descendants
from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from tasks.runtime.artifact import Artifact
from tasks.runtime.code import ROOT
from tasks.runtime.stage import StageFailure, StageInterrupted
from tasks.training.stage import train_model
from tasks.training.trainer_process import run_trainer
from tests.support.engine.small_runs import MODEL, OPTIM, TRAIN
from tests.support.engine.staged_training import CONFIG, LONG, trainer_of, workdir


def once_it_trains(act: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once in the parent, with the trainer's work directory, as soon as three rows are
    logged."""
    acted: list[Path] = []

    def show(_self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3 and not acted:
            acted.append(work)
            act(work)

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", show)


def interrupt(_work: Path) -> None:
    raise KeyboardInterrupt


def test_a_break_while_waiting_stops_the_trainer_after_it_saved(
    parents: tuple[Artifact, Artifact], out_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once_it_trains(interrupt, monkeypatch)
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

    once_it_trains(interrupt, monkeypatch)
    (tmp_path / "long").mkdir()
    with pytest.raises(KeyboardInterrupt):
        train_model(*parents, tmp_path / "long", dataclasses.replace(LONG, parallel=parallel))
    assert read_status(workdir(tmp_path / "long") / "status.json")["outcome"] == "preempted"


def test_a_trainer_asked_to_stop_interrupts_the_stage(
    parents: tuple[Artifact, Artifact], out_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once_it_trains(lambda work: os.kill(trainer_of(work), signal.SIGTERM), monkeypatch)
    with pytest.raises(StageInterrupted, match=r"training stopped at step \d+ of 100000 and saved"):
        train_model(*parents, out_dir, LONG)


def run_in(folder: Path, **train: float) -> RunConfig:
    settings = dataclasses.replace(TRAIN, **train)
    return RunConfig(MODEL, OPTIM, settings, ParallelConfig(), folder, folder)


class Terminated(BaseException):
    """SIGTERM, as a flow turns it into Python."""


COMMAND = "tasks.training.trainer_process.trainer_command"
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
        COMMAND,
        lambda run, workdir: ["bash", "-c", SAVING],
    )

    def stop_it(work: Path) -> None:
        if (work / "ready").exists():
            raise stop

    with pytest.raises(told):
        run_trainer(run_in(tmp_path), tmp_path, stop_it)


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
    monkeypatch.setattr(COMMAND, lambda run, workdir: ["bash", "-c", slow])

    def stop_it(work: Path) -> None:
        if (work / "ready").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trainer(run_in(tmp_path, grace_s=grace_s), tmp_path, stop_it)
    assert read_status(tmp_path / "status.json")["outcome"] == outcome
    assert ("train.grace_s" in capsys.readouterr().err) == (outcome == "died")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
def test_a_trainer_that_dies_without_a_word_is_said_to_have_died_and_of_what(
    number: signal.Signals,
    parents: tuple[Artifact, Artifact],
    out_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once_it_trains(lambda work: os.kill(trainer_of(work), number), monkeypatch)
    with pytest.raises(
        StageFailure, match=rf"training failed: the trainer was ended by {number.name} .*run again"
    ):
        train_model(*parents, out_dir, LONG)
    status = read_status(workdir(out_dir) / "status.json")
    assert status["outcome"] == "died" and number.name in status["cause"]
    assert number != signal.SIGBUS or re.search(r"GB are free in", status["cause"])
    # One that does not even begin is not taken for the one before.
    monkeypatch.setattr(
        COMMAND,
        lambda run, workdir: ["bash", "-c", "exit 3"],
    )
    with pytest.raises(StageFailure, match="the trainer ended with code 3"):
        train_model(*parents, out_dir, LONG)


@pytest.mark.slow
def test_of_several_processes_the_first_that_died_is_named(
    parents: tuple[Artifact, Artifact], out_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_the_second(_work: Path) -> None:
        ranks = [
            pid
            for pid in descendants([os.getpid()])
            if b"llm_core.training.train" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(ranks[-1], signal.SIGKILL)

    once_it_trains(kill_the_second, monkeypatch)
    parallel = ParallelConfig("ddp", 2, device="cpu", num_threads=1)
    with pytest.raises(
        StageFailure, match=r"training failed: rank 1 \(process \d+\) was ended by SIGKILL"
    ):
        train_model(*parents, out_dir, dataclasses.replace(LONG, parallel=parallel))
    assert read_status(workdir(out_dir) / "status.json")["outcome"] == "died"


def test_a_trainer_outlives_no_killed_parent_and_loses_no_step(
    parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out_dir = tmp_path / "out"
    script = (
        "import sys; from pathlib import Path\nfrom tests.support.engine.staged_training import"
        " LONG; from tasks.training.stage import train_model\nfrom tasks.runtime.artifact import"
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

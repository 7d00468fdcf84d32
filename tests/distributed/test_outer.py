"""Members that train apart meet exactly, and go on whoever comes, leaves or dies."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError, key_config
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.outer import OuterConfig
from llm_core.training.outer.members import Decision, Meeting
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from llm_core.training.train import run
from tasks.runtime.code import ROOT
from tasks.training.config import TrainStageConfig
from tests.support.distributed.processes import run_program
from tests.support.engine.small_runs import (
    MODEL,
    OPTIM,
    TRAIN,
    read_rows,
    run_config,
    trainer_arguments,
)

MEMBERS, NUM_STEPS, ROUND_STEPS, LEASE_S = 4, 1200, 20, 3.0
EACH, LATE_ROUND = 6, 3
"""Of kills and of stops; the round after which the last member begins."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Differences of four members in float64."""
    folder = tmp_path_factory.mktemp("outer")
    run_program("tests.support.distributed.outer", [str(folder)], folder)
    answers: dict[str, float] = json.loads((folder / "found.json").read_text("utf-8"))
    return answers


def test_one_inner_step_of_sgd_and_a_plain_outer_step_are_ddp(found: dict[str, float]) -> None:
    assert found["ddp"] <= 1e-12


def test_rounds_of_adamw_are_nesterov_steps_along_the_weighted_mean_of_changes(
    found: dict[str, float],
) -> None:
    assert found["plain"] <= 1e-10


def test_a_member_that_is_alone_trains_as_one_without_an_outer_step(
    found: dict[str, float],
) -> None:
    assert found["alone"] <= 1e-12


def test_a_round_waits_for_members_that_live_and_no_others(tmp_path: Path) -> None:
    one, other = (Meeting(tmp_path, member, 3, lease_s=5) for member in (0, 1))

    def bring(meeting: Meeting) -> None:
        meeting.put(meeting.change(0, meeting.member), lambda path: path.write_text("x"))

    with one.attended():
        with other.attended():
            bring(one)
            assert one.decide(0, waits_for_all=False) is None, "the other is at work"
            assert one.decide(0, waits_for_all=True) is None
        assert one.decide(0, waits_for_all=True) is None, "a third may come"
        with other.attended():
            bring(other)
            assert other.decide(0, waits_for_all=False) == Decision((0, 1), 1)
        assert one.decide(0, waits_for_all=False) == Decision((0, 1), 1), "decided once"


def test_a_lease_that_is_not_renewed_ends(tmp_path: Path) -> None:
    one, other = (Meeting(tmp_path, member, 2, lease_s=5) for member in (0, 1))
    with one.attended(), other.attended():
        assert one.is_alive(1)
        lease = tmp_path / "member-1"
        os.utime(lease, (time.time() - 6, time.time() - 6))
        assert not one.is_alive(1) and one.is_alive(0)


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    with (
        Meeting(tmp_path, 0, 2, 5).attended(),
        pytest.raises(ConfigError, match=r"member \(0\) is taken.*another number"),
        Meeting(tmp_path, 0, 2, 5).attended(),
    ):
        pass


@pytest.mark.parametrize(
    ("outer", "train", "parallel", "message"),
    [
        ({"steps": 5}, {}, {}, r"num_steps \(12\).*try train.num_steps=15"),
        ({}, {"ema": 0.9}, {}, "set both 0"),
        ({}, {}, {"kind": "ddp", "num_processes": 2}, "set parallel=none"),
        ({"members": 3}, {}, {}, r"micro_batch_sequences x outer.members"),
        ({"folder": None}, {}, {}, "folder that all share"),
        ({"member": 2}, {}, {}, r"member \(2\) must be from 0 to 1"),
    ],
)
def test_what_members_cannot_do_is_refused(
    outer: dict[str, Any], train: dict[str, Any], parallel: dict[str, Any], message: str
) -> None:
    values = {"kind": "diloco", "steps": 4, "folder": Path("shared")} | outer
    with pytest.raises(ConfigError, match=message):
        TrainStageConfig(
            MODEL,
            OPTIM,
            dataclasses.replace(TRAIN, **train),
            ParallelConfig(device="cpu", outer=OuterConfig(**values), **parallel),
        )


def test_the_key_knows_how_members_meet_and_not_where() -> None:
    def key(**values: Any) -> dict[str, Any]:
        outer = OuterConfig("diloco", 4, folder=Path("a"))
        parallel = ParallelConfig(outer=dataclasses.replace(outer, **values))
        return key_config(TrainStageConfig(MODEL, OPTIM, TRAIN, parallel))

    assert key() == key(folder=Path("b"), lease_s=3.0)
    assert key() != key(lr=1.0)
    assert key() != key(member=1), "members of one store have an artifact each"


def test_a_member_that_makes_no_progress_loses_its_lease(tmp_path: Path) -> None:
    hangs = Meeting(tmp_path, 1, 2, lease_s=0.4, silent_s=1.0)
    with Meeting(tmp_path, 0, 2, lease_s=0.4).attended(), hangs.attended():
        other = Meeting(tmp_path, 0, 2, lease_s=0.4)
        until = time.monotonic() + 30
        while other.is_alive(1):
            assert time.monotonic() < until, "its thread renews it for ever"
            time.sleep(0.1)
        hangs.progress()
        while not other.is_alive(1):
            assert time.monotonic() < until, "it goes on, and stays dead"
            time.sleep(0.1)


def small_run(folder: Path, members: int = 2, **train: Any) -> RunConfig:
    """Of member 0, which waits for others for a tenth of a second."""
    folder.mkdir(exist_ok=True)
    outer = OuterConfig("diloco", 4, members, folder=folder / "meeting", lease_s=0.1)
    train = {"validate_every": 4, "micro_batch_sequences": 1} | train
    return run_config(folder, train=train, parallel={"outer": outer})


def train_in(config: RunConfig, workdir: Path) -> None:
    workdir.mkdir(exist_ok=True)
    run(config, workdir)


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    config = small_run(tmp_path)
    train_in(config, tmp_path / "work")
    train_in(config, tmp_path / "again")
    other = dataclasses.replace(config, optim=dataclasses.replace(config.optim, lr=1e-3))
    message = r"folder \(.*\) is of another training: its optim.lr is 0.003, that of this run 0.001"
    with pytest.raises(ConfigError, match=message):
        train_in(other, tmp_path / "other")
    (tmp_path / "meeting" / "made-with.json").unlink()
    with pytest.raises(ConfigError, match="is of another training"):
        train_in(config, tmp_path / "third")


def test_a_member_that_is_stopped_while_it_waits_resumes_where_it_waited(tmp_path: Path) -> None:
    expected = tmp_path / "expected" / "work"
    train_in(small_run(tmp_path / "expected", keep_models_every=4), expected)
    config, work = small_run(tmp_path / "found", keep_models_every=4), tmp_path / "found" / "work"
    other = Meeting(tmp_path / "found" / "meeting", 1, 2, lease_s=60)

    def stop_once_it_waits() -> None:
        while not other.change(1, 0).exists():
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)

    with other.attended():
        # It lives for as long as it is waited for, and brings nothing.
        lease = tmp_path / "found" / "meeting" / "member-1"
        os.utime(lease, (time.time() - 60, time.time() - 60))
        waits = threading.Thread(target=stop_once_it_waits)
        waits.start()
        with pytest.MonkeyPatch.context() as patch:
            alive = Meeting.is_alive
            patch.setattr(
                Meeting,
                "is_alive",
                lambda meeting, member: (
                    alive(meeting, member) or (member == 1 and meeting.change(1, 0).exists())
                ),
            )
            train_in(config, work)
            waits.join()
            assert read_status(work / "status.json")["outcome"] == "preempted"
            assert not (work / "models" / "step-00000008").exists(), "it has no outer step yet"
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
            train_in(config, work)
            assert read_status(work / "status.json")["outcome"] == "preempted", "it still waits"
    train_in(config, work)
    assert read_status(work / "status.json")["outcome"] == "finished"
    for name in ("model", "models/step-00000008"):
        weights = (folder / name / "model.safetensors" for folder in (expected, work))
        assert len({file.read_bytes() for file in weights}) == 1, name


@pytest.mark.parametrize("at", ["change-0", "members.json", "state"])
def test_a_member_that_is_rounds_late_goes_on_with_the_newest(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others end two rounds, and remove the first, just before it puts a file there."""
    put, late = Meeting.put, []

    def put_late(meeting: Meeting, file: Path, write: Any, replace: bool = False) -> bool:
        ends = meeting.state(1) if at == "state" else meeting.state(0).with_name(at)
        if file == ends and not late:
            late.append(file)
            for number in (1, 2):
                meeting.state(number).parent.mkdir()
                shutil.copyfile(meeting.state(0), meeting.state(number))
            shutil.rmtree(meeting.state(0).parent)
        return put(meeting, file, write, replace)

    monkeypatch.setattr(Meeting, "put", put_late)
    train_in(small_run(tmp_path), tmp_path / "work")
    assert late
    rows = read_rows(tmp_path / "work" / "metrics.jsonl")
    steps = [row["step"] for row in rows if "train_loss" in row]
    assert steps == [1, 2, 3, 4, 9, 10, 11, 12]


def config_of(folder: Path, member: int) -> RunConfig:
    outer = OuterConfig("diloco", ROUND_STEPS, MEMBERS, member, folder / "meeting", lease_s=LEASE_S)
    train = {
        "num_steps": NUM_STEPS,
        "validate_every": 0,
        "checkpoint_every": 30,
        "micro_batch_sequences": 1,
    }
    (folder / str(member)).mkdir()
    return run_config(folder / str(member), train=train, parallel={"outer": outer})


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "llm_core.training.train", *arguments], env=environment
    )


@pytest.mark.slow
def test_members_that_are_killed_stopped_and_late_finish_with_the_same_weights(
    tmp_path: Path,
) -> None:
    """Kills, and stops that outlast a lease or not, come at random; one member begins late."""
    lines = [trainer_arguments(tmp_path / str(m), config_of(tmp_path, m)) for m in range(MEMBERS)]
    works = [tmp_path / str(m) / "work" for m in range(MEMBERS)]
    running = [start(line) for line in lines[:-1]]
    chance, until = random.Random(3), time.monotonic() + 500
    done = {"kill": 0, "stop": 0}

    def has_begun(member: int) -> bool:
        return len(read_rows(works[member] / "metrics.jsonl")) > 10

    try:
        while any(one.poll() is None for one in running):
            assert time.monotonic() < until, f"they hang after {done}"
            time.sleep(chance.uniform(0.5, 2.0))
            if len(running) < MEMBERS and newest_round(tmp_path) >= LATE_ROUND:
                running.append(start(lines[-1]))
            member = chance.randrange(len(running))
            kind = chance.choice([name for name, count in done.items() if count < EACH] or [""])
            if not kind or not has_begun(member) or running[member].poll() is not None:
                continue
            # Either within its lease, or after it.
            away_s = chance.choice((0.0, LEASE_S + 1))
            if kind == "kill":
                running[member].kill()
                running[member].wait()
                time.sleep(away_s)
                running[member] = start(lines[member])
            else:
                running[member].send_signal(signal.SIGSTOP)
                time.sleep(0.5 + away_s)
                running[member].send_signal(signal.SIGCONT)
            done[kind] += 1
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert len(running) == MEMBERS and set(done.values()) == {EACH}
    assert {read_status(work / "status.json")["outcome"] for work in works} == {"finished"}
    models = {(work / "model" / "model.safetensors").read_bytes() for work in works}
    assert len(models) == 1
    assert newest_round(tmp_path) == NUM_STEPS // ROUND_STEPS
    late = [row["step"] for row in read_rows(works[-1] / "metrics.jsonl") if "train_loss" in row]
    assert late[0] > LATE_ROUND * ROUND_STEPS, "it took the weights of the newest round"
    rows = read_rows(works[0] / "metrics.jsonl")
    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    assert losses[-1] < 0.6 * losses[0]


def newest_round(folder: Path) -> int:
    states = (folder / "meeting").glob("round-*/state")
    return max((int(state.parent.name.split("-")[1]) for state in states), default=0)

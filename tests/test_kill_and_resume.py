"""A run that is killed at any moment goes on with the same command, and its artifacts are those of
a run that was not."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from flows.services.processes import start_time
from tasks.runtime.graph import ancestors
from tests.support.whole_runs import (
    contents,
    kill_tree,
    named,
    run,
    signal_if_alive,
    started,
    summary,
    wait_for,
)


@pytest.fixture(scope="module")
def whole_run(small_corpus: Path, plain_run: Path) -> Path:
    """The same run, to its end."""
    run("run", small_corpus, plain_run)
    return plain_run


@pytest.mark.timeout(900)
def test_run_killed_at_random_moments_gives_the_same_artifacts(
    small_corpus: Path, plain_run: Path, tmp_path: Path
) -> None:
    moments = random.Random(2)
    place = tmp_path / "killed"
    for stage in ("quality", "shards", "train"):
        with started("train", small_corpus, place) as process:
            wait_for(lambda stage=stage: (place / "store/.work" / stage).exists(), process)
            time.sleep(moments.uniform(0.0, 0.5))
            kill_tree(process)
        assert process.returncode == -signal.SIGKILL, "ended before it was killed"
    run("train", small_corpus, place)
    assert contents(place) == contents(plain_run, ancestors("train"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("runner", ["thread", "process"])
def test_run_killed_many_times_gives_the_same_artifacts(
    runner: str, small_corpus: Path, whole_run: Path, tmp_path: Path
) -> None:
    moments = random.Random(3)
    kills = 0
    for attempt in range(2):
        place = tmp_path / str(attempt)
        for number in range(40):
            with started("run", small_corpus, place, f"runner={runner}") as process:
                wait_for(lambda place=place: (place / "store/.runs").exists(), process)
                until = time.monotonic() + moments.uniform(0.0, 4.0) * (1 + number / 10)
                while process.poll() is None and time.monotonic() < until:
                    time.sleep(0.002)
                kill_tree(process)
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, (place / "log.txt").read_text()[-3000:]
            kills += 1
        run("run", small_corpus, place, f"runner={runner}")
        assert contents(place) == contents(whole_run)
    assert kills > 7


def data_half(whole_run: Path, place: Path) -> Path:
    """A place in which everything up to the shards is made already."""
    shutil.copytree(whole_run / "store", place / "store")
    for stage in ("train", "evaluate", "bench", "report"):
        shutil.rmtree(place / "store" / stage)
    return place


def wait_for_first_steps(place: Path, process: subprocess.Popen[str]) -> int:
    """The trainer's process, once it has a checkpoint."""
    (trainer,) = wait_for(lambda: named(process.pid, "llm_core.training.train"), process)
    wait_for(lambda: list((place / "store/.work/train").glob("*/*/*/checkpoints/step-*")), process)
    return int(trainer)


@pytest.mark.slow
def test_killed_run_leaves_no_trainer_behind_and_the_next_one_goes_on(
    small_corpus: Path, whole_run: Path, tmp_path: Path
) -> None:
    place = data_half(whole_run, tmp_path / "orphan")
    with started("train", small_corpus, place, "train.num_steps=100000") as process:
        trainer = wait_for_first_steps(place, process)
        process.kill()
        process.wait()
    until = time.monotonic() + 60
    while start_time(trainer) and time.monotonic() < until:
        time.sleep(0.05)
    assert not start_time(trainer)
    (status,) = (place / "store/.work/train").glob("*/*/*/status.json")
    assert json.loads(status.read_text())["outcome"] == "preempted", "it has saved before it went"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_trainer_is_one_clear_failure_and_the_next_run_goes_on(
    small_corpus: Path, whole_run: Path, tmp_path: Path
) -> None:
    place = data_half(whole_run, tmp_path / "trainer")
    with started("run", small_corpus, place) as process:
        signal_if_alive(wait_for_first_steps(place, process), signal.SIGKILL)
        assert process.wait() == 2
    last = (place / "log.txt").read_text().splitlines()[-1]
    assert last.startswith("textmill: training failed") and "SIGKILL" in last
    done = run("run", small_corpus, place)
    assert [n for n, stage in summary(done)["stages"].items() if not stage["cached"]] == [
        "train",
        "evaluate",
        "bench",
        "report",
    ]
    assert contents(place) == contents(whole_run)


@pytest.mark.slow
def test_killed_worker_is_one_clear_failure_and_the_next_run_goes_on(
    small_corpus: Path, whole_run: Path, tmp_path: Path
) -> None:
    place = tmp_path / "worker"
    with started("run", small_corpus, place, "runner=process", "only=ingest") as process:
        workers = wait_for(lambda: named(process.pid, "spawn_main"), process)
        signal_if_alive(workers[0], signal.SIGKILL)
        assert process.wait() == 2
    last = (place / "log.txt").read_text().splitlines()[-1]
    assert last.startswith("textmill: a worker process was killed") and "num_workers" in last
    run("run", small_corpus, place, "runner=process", "only=ingest")
    assert contents(place, ["ingest"]) == contents(whole_run, ["ingest"])

"""A rank that is stopped is named in one line in time, and the run goes on when it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_core.parallel.hosts.flight import who_is_behind
from llm_core.training.metric_log import read_rows
from llm_core.training.status import status_as_written
from tasks.training.trainer_process import trainer_command, trainer_environment
from tests.support.distributed import stopped
from tests.support.distributed.processes import run_program
from tests.support.engine.small_runs import run_config, write_config

HEARTBEAT_S = 20.0
"""Long, so that ranks on a busy machine are not silent without being stopped."""


def test_a_stopped_process_is_named_to_all_within_the_heartbeat(tmp_path: Path) -> None:
    run_program("tests.support.distributed.stopped", [str(tmp_path)], tmp_path)
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert found["named_after_s"] < stopped.HEARTBEAT_S and found["codes"] == [0] * stopped.WORLD
    told: dict[str, set[int]] = {}
    for rank, alarm, text in found["alarms"]:
        told.setdefault(alarm, set()).add(rank)
        assert text.startswith(f"rank {stopped.STOPPED} (process {found['pid']} on ")
    everyone = set(range(stopped.WORLD))
    assert told == {"silent_rank": everyone, "rank_is_back": everyone}
    assert len(found["alarms"]) == 2 * stopped.WORLD, "each is told once"


@contextmanager
def running(folder: Path, **parallel: float) -> Iterator[Run]:
    """Two ranks that have done some steps of many."""
    workdir = folder / "run"
    workdir.mkdir()
    config = run_config(
        folder,
        train={"num_steps": 400, "checkpoint_every": 400, "validate_every": 0, "grace_s": 2.0},
        parallel={"kind": "ddp", "num_processes": 2, "heartbeat_s": HEARTBEAT_S, **parallel},
    )
    write_config(workdir / "config.json", config)
    with (workdir / "log").open("wb") as log:
        launcher = subprocess.Popen(
            trainer_command(config, workdir),
            env=trainer_environment() | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    run = Run(workdir, launcher)
    try:
        run.wait_for(lambda: len(read_rows(workdir / "metrics.jsonl")) > 3, 120)
        yield run
    finally:
        launcher.kill()
        launcher.wait()


@dataclass(frozen=True)
class Run:
    workdir: Path
    launcher: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.workdir / "log").read_text("utf-8")

    @property
    def status(self) -> dict[str, Any]:
        return status_as_written(self.workdir / "status.json")

    def lines(self, word: str) -> list[str]:
        return [line for line in self.log.splitlines() if word in line]

    def wait_for(self, is_so: Callable[[], object], within_s: float) -> float:
        """Seconds until it is so."""
        began = time.monotonic()
        while not is_so():
            assert self.launcher.poll() is None, self.log[-3000:]
            assert time.monotonic() - began < within_s
            time.sleep(0.02)
        return time.monotonic() - began

    def stop_second(self) -> int:
        """SIGSTOP to the rank that is not the first; its process."""
        parent, first = self.launcher.pid, int(self.status["pid"])
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text("utf-8").split()
        (other,) = {int(child) for child in children} - {first}
        os.kill(other, signal.SIGSTOP)
        return other


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stopped_rank_is_named_within_the_heartbeat_and_the_run_finishes_once_it_goes_on(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as run:
        stopped = run.stop_second()
        assert run.wait_for(lambda: run.lines("silent_rank"), HEARTBEAT_S) < HEARTBEAT_S
        (line,) = run.lines("silent_rank")
        assert f"rank 1 (process {stopped} on " in line
        run.wait_for(lambda: "alarm" in run.status, 5)
        assert "rank 1" in run.status["alarm"]
        records = json.loads((run.workdir / "flight" / "rank-00000.json").read_text("utf-8"))
        assert records["entries"] and who_is_behind([(0, records)]) == []
        os.kill(stopped, signal.SIGCONT)
        assert run.launcher.wait(120) == 0, run.log[-3000:]
    events = [row["event"] for row in read_rows(run.workdir / "metrics.jsonl") if "event" in row]
    assert events == ["silent_rank", "rank_is_back"]
    assert run.status["alarm"] is None and len(run.lines("silent_rank")) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_collective_that_takes_too_long_ends_the_run_and_leaves_flight_records(
    tmp_path: Path,
) -> None:
    with running(tmp_path, timeout_s=4.0) as run:
        stopped = run.stop_second()
        assert run.launcher.wait(120) != 0
        assert not Path(f"/proc/{stopped}").exists(), "a stopped rank is not left behind"
    assert "imed out" in run.status["error"], run.status
    assert (run.workdir / "flight" / "rank-00000.json").is_file()
    assert len(run.lines("says which rank is behind")) == 1

"""A rank that is stopped is named in one line in time, and the run goes on when it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stopped_rank_is_named_within_the_heartbeat_and_the_run_finishes_once_it_goes_on(
    tmp_path: Path,
) -> None:
    workdir = tmp_path / "run"
    workdir.mkdir()
    config = run_config(
        tmp_path,
        train={"num_steps": 400, "checkpoint_every": 400, "validate_every": 0},
        parallel={"kind": "ddp", "num_processes": 2, "heartbeat_s": HEARTBEAT_S},
    )
    write_config(workdir / "config.json", config)
    with (workdir / "log").open("wb") as log:
        launcher = subprocess.Popen(
            trainer_command(config, workdir),
            env=trainer_environment() | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def log_lines(word: str) -> list[str]:
        lines = (workdir / "log").read_text("utf-8").splitlines()
        return [line for line in lines if word in line]

    def wait_for(is_so: Callable[[], object], within_s: float) -> float:
        began = time.monotonic()
        while not is_so():
            assert launcher.poll() is None, (workdir / "log").read_text("utf-8")[-3000:]
            assert time.monotonic() - began < within_s
            time.sleep(0.02)
        return time.monotonic() - began

    try:
        wait_for(lambda: len(read_rows(workdir / "metrics.jsonl")) > 3, 120)
        stopped = other_rank(launcher.pid, int(status_as_written(workdir / "status.json")["pid"]))
        os.kill(stopped, signal.SIGSTOP)
        assert wait_for(lambda: log_lines("silent_rank"), HEARTBEAT_S) < HEARTBEAT_S
        (line,) = log_lines("silent_rank")
        assert f"rank 1 (process {stopped} on " in line
        wait_for(lambda: "alarm" in status_as_written(workdir / "status.json"), 5)
        assert "rank 1" in status_as_written(workdir / "status.json")["alarm"]
        records = json.loads((workdir / "flight" / "rank-00000.json").read_text("utf-8"))
        assert records["entries"] and who_is_behind([(0, records)]) == []
        os.kill(stopped, signal.SIGCONT)
        assert launcher.wait(120) == 0, (workdir / "log").read_text("utf-8")[-3000:]
    finally:
        launcher.kill()
        launcher.wait()
    events = [row["event"] for row in read_rows(workdir / "metrics.jsonl") if "event" in row]
    assert events == ["silent_rank", "rank_is_back"]
    assert status_as_written(workdir / "status.json")["alarm"] is None
    assert len(log_lines("silent_rank")) == 1


def other_rank(launcher: int, first: int) -> int:
    """The process of the rank that is not the first."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text("utf-8").split()
    (other,) = {int(child) for child in children} - {first}
    return other

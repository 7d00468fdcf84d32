"""A parameter server is DDP where workers wait for each other, and keeps its bound where not."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.services.processes import descendants
from llm_core.checkpoint.reader import PieceFiles
from llm_core.checkpoint.weights import open_weights
from llm_core.config import ConfigError, key_config
from llm_core.optim.config import GuardConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.servers.shares import shared_out
from llm_core.training.metric_log import read_rows
from llm_core.training.run_config import RunConfig
from llm_core.training.status import read_status
from tasks.training.config import TrainStageConfig
from tasks.training.trainer_process import trainer_command, trainer_environment
from tests.support.distributed.processes import run_program
from tests.support.distributed.stale import STEPS, WORLD
from tests.support.engine.small_runs import (
    MODEL,
    OPTIM,
    TRAIN,
    result_bytes,
    run_config,
    write_config,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stale")
    run_program("tests.support.distributed.stale", [str(folder)], folder)
    answers: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
    return answers


def test_no_worker_begins_a_step_further_ahead_than_the_bound(found: dict[str, Any]) -> None:
    for run in found["bounds"]:
        assert run["ahead"] <= run["staleness"]
        assert 0 < run["missed"] <= (WORLD - 1) * (2 * run["staleness"] + 1)


def test_slow_workers_are_not_waited_for_within_the_bound(found: dict[str, Any]) -> None:
    assert any(run["ahead"] == run["staleness"] for run in found["bounds"])


def test_every_gradient_is_an_update(found: dict[str, Any]) -> None:
    for run in found["bounds"]:
        assert run["updates"] == WORLD * STEPS
        assert run["gradients"][0] == WORLD * STEPS


def test_a_checkpoint_of_a_meeting_is_that_of_ddp_bit_for_bit(found: dict[str, Any]) -> None:
    assert all(run["same"] for run in found["bounds"])


def test_stale_gradients_learn_nearly_what_ddp_learns(found: dict[str, Any]) -> None:
    (first, ddp), (_, server) = found["losses"]["ddp"], found["losses"]["server"]
    assert ddp < 0.6 * first
    # Measured: 1.15 of it.
    assert server < 1.3 * ddp


def test_all_workers_stop_after_the_same_step_within_the_bound(found: dict[str, Any]) -> None:
    (stopped,) = set(found["stopped_at"])
    assert stopped == 5 + 2


def test_a_process_sends_what_it_does_not_serve_and_to_all_others_what_it_serves(
    found: dict[str, Any],
) -> None:
    for run in found["bytes"]:
        whole = sum(run["served"])
        for served, sent in zip(run["served"], run["sent"], strict=True):
            assert sent == whole - served + (WORLD - 1) * served
    assert found["bytes"][1]["sent"][0] == (WORLD - 1) * whole


def test_weights_go_whole_to_the_server_that_has_least() -> None:
    assert shared_out({"a": 5, "b": 9, "c": 4, "d": 1}, 2) == {"a": 1, "b": 0, "c": 1, "d": 0}
    assert set(shared_out({"a": 5, "b": 9}, 1).values()) == {0}


@pytest.mark.parametrize(
    ("parallel", "train", "optim", "message"),
    [
        ({"device": "auto"}, {}, {}, "parallel.device=cpu"),
        ({"tp": 2}, {}, {}, "pp, cp and tp 1"),
        ({"servers": 3}, {}, {}, "set servers=0"),
        ({"kind": "ddp", "staleness": 1}, {}, {}, "belong to kind=server"),
        ({}, {}, {"kind": "muon"}, "set optim=adamw"),
        ({}, {}, {"state_in": "disk"}, "optim.state_in=device"),
        ({}, {"dtype": "fp16"}, {}, "train.dtype=bf16 or fp32"),
        ({"staleness": 1}, {"ema": 0.9}, {}, "parallel.staleness=0"),
        ({"staleness": 1}, {}, {"guard": GuardConfig(spike_std=6.0)}, "parallel.staleness=0"),
    ],
)
def test_what_servers_do_not_serve_is_refused(
    parallel: dict[str, Any], train: dict[str, Any], optim: dict[str, Any], message: str
) -> None:
    values = {"kind": "server", "num_processes": 2, "device": "cpu"} | parallel
    with pytest.raises(ConfigError, match=message):
        TrainStageConfig(
            MODEL,
            dataclasses.replace(OPTIM, **optim),
            dataclasses.replace(TRAIN, **train),
            ParallelConfig(**values),
        )


def test_only_stale_gradients_decide_a_result() -> None:
    def key(**values: Any) -> dict[str, Any]:
        return key_config(
            TrainStageConfig(MODEL, OPTIM, TRAIN, ParallelConfig(device="cpu", **values))
        )

    served = {"kind": "server", "num_processes": 2}
    assert key() == key(**served) == key(**served, servers=1)
    assert key() != key(**served, staleness=1) != key(**served, staleness=2)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["server", "worker"])
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_run_that_is_stopped_and_loses_a_process_counts_every_gradient_once(
    tmp_path: Path, staleness: int, lost: str
) -> None:
    """One process serves and both work; checkpoints are written while training goes on."""
    steps = {"num_steps": 80, "checkpoint_every": 5, "validate_every": 40}
    served = {"kind": "server", "num_processes": 2, "servers": 1, "staleness": staleness}
    config = run_config(
        tmp_path,
        train=steps | {"checkpoint_in_background": True},
        parallel=served | {"max_restarts": 1},
    )
    assert train(tmp_path, config, stop) == 75
    assert read_status(tmp_path / "status.json")["outcome"] == "preempted"
    assert train(tmp_path, config, partial(kill, 0 if lost == "server" else 1)) == 0
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if "train_loss" in row] == list(range(1, 81))
    assert {"preempted", "resumed"} <= {row.get("event") for row in rows}
    assert b"exitcode: -9" in (tmp_path / "log").read_bytes()
    # A stale server updates with the gradient of each worker, and else with their sum.
    assert updates_in(tmp_path) == 80 * (2 if staleness else 1)
    if staleness == 0:
        whole = tmp_path / "whole"
        whole.mkdir()
        assert train(whole, config, lambda _: None) == 0
        assert result_bytes(whole) == result_bytes(tmp_path)


def updates_in(folder: Path) -> int:
    """Of the last checkpoint."""
    with open_weights(folder / "checkpoints") as saved:
        return int(saved._whole("optimizer.num_updates", PieceFiles(saved.folder)))


def train(folder: Path, config: RunConfig, then: Callable[[int], None]) -> int:
    """The exit code of a launcher to which something happens once it has written a checkpoint."""
    before = newest(folder)
    write_config(folder / "config.json", config)
    with (folder / "log").open("ab") as log:
        launched = subprocess.Popen(
            trainer_command(config, folder),
            env=trainer_environment() | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    while newest(folder) == before:
        assert launched.poll() is None, (folder / "log").read_text("utf-8")
        time.sleep(0.01)
    then(launched.pid)
    return launched.wait(250)


def newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("checkpoints/step-*")), default="")


def stop(launcher: int) -> None:
    os.kill(launcher, signal.SIGTERM)


def kill(rank: int, launcher: int) -> None:
    """One of its processes that train, a moment after the checkpoint."""
    time.sleep(0.2)
    (pid,) = [
        pid
        for pid in descendants([launcher])[1:]
        if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text("utf-8").split("\0")
        and b"llm_core.training.train" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(pid, signal.SIGKILL)

"""Launchers on several machines are one run; here each machine is a launcher of its own on this
one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_core.training.metric_log import read_rows, training_rows
from llm_core.training.status import read_status
from tasks.runtime.code import ROOT
from tests.support.distributed.processes import free_port
from tests.support.engine.small_runs import run_config, write_config


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_two_launchers_train_what_one_process_trains(tmp_path: Path) -> None:
    config = run_config(
        tmp_path, train={"num_steps": 4}, parallel={"kind": "fsdp", "num_processes": 4, "tp": 2}
    )
    file, work, port = (
        write_config(tmp_path / "config.json", config),
        tmp_path / "work",
        free_port(),
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
    ]
    command += [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"localhost:{port}",
        "--rdzv-id",
        "run",
    ]
    command += ["-m", "llm_core.training.train", "--config", str(file), "--workdir", str(work)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    launchers = [subprocess.Popen(command, env=environment) for _ in range(2)]
    try:
        assert [launcher.wait(600) for launcher in launchers] == [0, 0]
    finally:
        for launcher in launchers:
            launcher.terminate()
    status = read_status(work / "status.json")
    assert (status["outcome"], status["num_processes"]) == ("finished", 4) and (
        work / "model" / "model.safetensors"
    ).exists()
    alone = write_config(tmp_path / "alone.json", run_config(tmp_path, train={"num_steps": 4}))
    command = [
        sys.executable,
        "-m",
        "llm_core.training.train",
        "--config",
        str(alone),
        "--workdir",
        str(tmp_path / "alone"),
    ]
    subprocess.run(command, env=environment, check=True)
    found, expected = (losses(folder) for folder in (work, tmp_path / "alone"))
    assert found == pytest.approx(expected, rel=1e-6)


def losses(workdir: Path) -> list[float]:
    return [
        row.get("train_loss", row.get("val_loss"))
        for row in training_rows(read_rows(workdir / "metrics.jsonl"))
    ]

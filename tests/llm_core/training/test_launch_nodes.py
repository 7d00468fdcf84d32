"""A node of a run on several finds itself and the first one in the scheduler's variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.training.launch import Node, main, read_node, torchrun_options
from tests.support.engine.small_runs import run_config, write_config

SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "120007",
    "SLURM_NODEID": "3",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9",
}
JOBSET = {"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "train-node-0-0.train"}


@pytest.mark.parametrize(
    ("environment", "num_nodes", "node"),
    [
        (SLURM, 4, Node(3, "10.0.0.9", 20_007)),
        (JOBSET, 2, Node(1, "train-node-0-0.train", 29_500)),
        (
            SLURM | {"MASTER_ADDR": "ib0", "MASTER_PORT": "5000"},
            4,
            Node(3, "ib0", 5000),
        ),
        # A pod index of something around it is not one of the step.
        (SLURM | {"JOB_COMPLETION_INDEX": "0"}, 4, Node(3, "10.0.0.9", 20_007)),
    ],
)
def test_a_node_is_read_from_the_variables_of_its_scheduler(
    environment: dict[str, str], num_nodes: int, node: Node
) -> None:
    assert read_node(environment, num_nodes) == node


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "needs the variables of a scheduler"),
        # A batch script, and no step.
        ({"SLURM_JOB_ID": "1", "SLURM_NODEID": "0"}, "start it with srun"),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "2"}, "node 3 of 2"),
        ({**JOBSET, "JOB_COMPLETION_INDEX": "4"}, "node 4 of 4"),
    ],
)
def test_a_process_that_is_no_node_of_the_run_is_refused(
    environment: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        read_node(environment, 4)


def test_each_node_starts_its_share_at_the_place_the_first_one_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    parallel = {"kind": "ddp", "num_processes": 8, "max_restarts": 3}
    config = run_config(tmp_path, train={"micro_batch_sequences": 1}, parallel=parallel)
    assert torchrun_options(config, 4) == [
        "--nproc-per-node=2",
        "--nnodes=4",
        "--node-rank=3",
        "--rdzv-backend=static",
        "--rdzv-endpoint=10.0.0.9:20007",
        "--max-restarts=0",
    ]
    # In an allocation too, a run of one node is alone.
    assert torchrun_options(config, 1) == [
        "--nproc-per-node=8",
        "--standalone",
        "--max-restarts=3",
    ]
    with pytest.raises(ConfigError, match=r"num_processes \(8\) must be a multiple of .* \(3\)"):
        torchrun_options(config, 3)


def test_a_refusal_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_config(tmp_path, parallel={"kind": "ddp", "num_processes": 2})
    file = write_config(tmp_path / "config.json", config)
    with pytest.raises(SystemExit) as end:
        main(["--config", str(file), "--workdir", str(tmp_path), "--num-nodes", "2"])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("llm_core.training.launch: --num-nodes (2) needs")

"""A node trains with the code that the key names, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.parallel.config import ParallelConfig
from tasks.clusters.config import ClusterConfig
from tasks.runtime.code import ROOT, reached_definitions
from tasks.runtime.graph import STAGES
from tasks.training.cluster_job import key_of
from tasks.training.config import TrainStageConfig
from tasks.training.on_node import LIBRARIES, MODULES, main, recipe
from tests.support.engine.small_runs import MODEL, OPTIM, TRAIN


def test_what_a_node_compares_is_what_the_graph_says_of_the_stage() -> None:
    stage = STAGES["train"]
    assert set(MODULES) == {stage.module, *stage.entry_points}
    assert stage.libraries == LIBRARIES


def test_how_jobs_are_submitted_is_in_no_key() -> None:
    reached = {module for module, _ in reached_definitions(MODULES)}
    assert not reached & {"tasks.clusters.slurm", "tasks.clusters.manifest", "tasks.clusters.job"}
    assert "tasks.training.trainer_process" in reached


def test_the_program_takes_the_place_of_the_check_with_its_words() -> None:
    words = ["a b", "$HOME", ""]
    done = subprocess.run(
        [sys.executable, "-m", "tasks.training.on_node", recipe(), "calendar", "2026", "1", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "unrecognized arguments: a b $HOME" in done.stderr


def test_other_code_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main("0" * 16, "calendar")
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not what this job was submitted with (0000000000000000)" in line


def test_a_job_is_called_by_the_key_of_the_store_and_elsewhere_by_its_place(tmp_path: Path) -> None:
    assert key_of(tmp_path / "train" / "0123456789abcdef" / "out") == "0123456789abcdef"
    other = key_of(tmp_path / "My Folder!" / "out")
    assert other == key_of(tmp_path / "My Folder!" / "out") != key_of(tmp_path / "b" / "out")
    assert other.isalnum()


def test_processes_that_do_not_fit_their_nodes_are_refused() -> None:
    parallel = ParallelConfig("ddp", 4)
    with pytest.raises(ConfigError, match=r"num_processes \(4\) must be a multiple of .* \(3\)"):
        TrainStageConfig(MODEL, OPTIM, TRAIN, parallel, cluster=ClusterConfig("slurm", num_nodes=3))
    with pytest.raises(ConfigError, match=r"num_nodes \(2\) needs a scheduler; add cluster=slurm"):
        ClusterConfig(num_nodes=2)

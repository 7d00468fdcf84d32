"""Training as a job of Kubernetes, whose pods are processes here: a stand-in for kubectl."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from llm_core.training.status import status_as_written
from tasks.clusters.config import ClusterConfig, KubernetesConfig
from tasks.clusters.job import read_job
from tasks.runtime.artifact import Artifact
from tasks.runtime.code import ROOT
from tasks.runtime.stage import StageFailure
from tasks.training.config import TrainStageConfig
from tasks.training.stage import train_model
from tests.support.clusters.fake_commands import KUBECTL, put_on_path
from tests.support.engine.staged_training import CONFIG, LONG, workdir

ONE = ParallelConfig(device="cpu", num_threads=1)
TWO = ParallelConfig("ddp", 2, device="cpu", num_threads=1)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterConfig:
    put_on_path(tmp_path / "bin", monkeypatch, kubectl=KUBECTL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": path}
    pods = KubernetesConfig(mount=tmp_path, env=variables)
    return ClusterConfig("kubernetes", poll_s=0.2, kubernetes=pods)


def on(
    config: TrainStageConfig, parallel: ParallelConfig, cluster: ClusterConfig
) -> TrainStageConfig:
    return replace(config, parallel=parallel, cluster=cluster)


def calls(tmp_path: Path) -> list[list[str]]:
    lines = (tmp_path / "bin" / "kubectl.state" / "calls.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_pods_train_the_bytes_of_this_machine(
    num_nodes: int, cluster: ClusterConfig, parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    parallel = {1: ONE, 2: TWO}[num_nodes]
    made = []
    configs = {
        "here": replace(CONFIG, parallel=parallel),
        "pods": on(CONFIG, parallel, replace(cluster, num_nodes=num_nodes)),
    }
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        made.append(train_model(*parents, tmp_path / name, config))
    files = [(one.path / "model" / "model.safetensors").read_bytes() for one in made]
    assert files[0] == files[1]
    asked = calls(tmp_path)
    assert sum(words[0] == "create" for words in asked) == 1
    assert all("--namespace=default" in words for words in asked)


@pytest.mark.slow
def test_a_stop_here_deletes_the_job_from_the_foreground_and_its_pods_save(
    cluster: ClusterConfig,
    parents: tuple[Artifact, Artifact],
    out_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_self: object, work: Path) -> None:
        if len(read_rows(work / "metrics.jsonl")) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_model(*parents, out_dir, on(LONG, ONE, cluster))
    work = workdir(out_dir)
    assert status_as_written(work / "status.json")["outcome"] == "preempted"
    (deleted,) = [words for words in calls(tmp_path) if words[0] == "delete"]
    assert "--cascade=foreground" in deleted
    assert not read_job(work)


def test_an_image_with_other_code_refuses_to_train_and_is_not_started_again(
    cluster: ClusterConfig,
    parents: tuple[Artifact, Artifact],
    out_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.training.cluster_job.recipe", lambda: "0" * 16)
    with pytest.raises(
        StageFailure, match=r"training failed: kubernetes job \S+ ended as failed(?s:.)*is not what"
    ):
        train_model(*parents, out_dir, on(CONFIG, ONE, cluster))

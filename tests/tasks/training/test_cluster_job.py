"""Training in jobs of a real Slurm of two nodes gives the bytes of training here, whatever happens
to the jobs and to whoever follows them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llm_core.parallel.config import ParallelConfig
from llm_core.training.metric_log import read_rows
from llm_core.training.status import status_as_written
from tasks.clusters.config import ClusterConfig
from tasks.clusters.job import read_job
from tasks.runtime.artifact import Artifact
from tasks.runtime.code import ROOT
from tasks.runtime.stage import StageFailure
from tasks.training.config import TrainStageConfig
from tasks.training.stage import train_model
from tests.support.clusters.real_slurm import is_installed, slurm_cluster, start_now
from tests.support.engine.small_runs import TRAIN
from tests.support.engine.staged_training import CONFIG, LONG, trainer_of, workdir

pytestmark = pytest.mark.skipif(not is_installed(), reason="needs Debian's slurmctld and slurmd")

ONE = ParallelConfig(device="cpu", num_threads=1)
TWO = ParallelConfig("ddp", 2, device="cpu", num_threads=1)
SLURM = ClusterConfig("slurm", poll_s=0.2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with (
        slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as conf,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(conf))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def on(config: TrainStageConfig, parallel: ParallelConfig, num_nodes: int = 1) -> TrainStageConfig:
    return replace(config, parallel=parallel, cluster=replace(SLURM, num_nodes=num_nodes))


def longer(num_steps: int) -> TrainStageConfig:
    return replace(CONFIG, train=replace(TRAIN, num_steps=num_steps, checkpoint_every=num_steps))


def model_bytes(made: Artifact) -> bytes:
    return (made.path / "model" / "model.safetensors").read_bytes()


def once_it_trains(
    act: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[Path], object] = lambda work: None,
) -> None:
    """Act in a training's third step, and once more when the state of its job was read again."""
    left = [then, act]

    def show(_self: object, work: Path) -> None:
        if len(left) == 1 or (left and len(read_rows(work / "metrics.jsonl")) >= 3):
            left.pop()(work)

    monkeypatch.setattr("tasks.training.progress.TrainingProgress.show", show)


def squeue(*options: str) -> str:
    done = subprocess.run(
        ["squeue", "--noheader", *options], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_job_of_one_node_trains_the_bytes_of_this_machine(
    slurm: None,
    parents: tuple[Artifact, Artifact],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = []
    for name, config in (("here", replace(CONFIG, parallel=ONE)), ("job", on(CONFIG, ONE))):
        (tmp_path / name).mkdir()
        made.append(train_model(*parents, tmp_path / name, config))
    assert model_bytes(made[0]) == model_bytes(made[1])
    told = capsys.readouterr().err
    assert re.search(r"textmill-train-\w+: submitted as slurm job \d+", told)
    assert "runs on n1" in told and "ended as COMPLETED on n1" in told
    assert not read_job(workdir(tmp_path / "job")), "its end was seen"


@pytest.mark.slow
def test_two_nodes_train_the_bytes_of_two_processes_of_one(
    slurm: None, parents: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    made = []
    for name, config in (("one", replace(CONFIG, parallel=TWO)), ("two", on(CONFIG, TWO, 2))):
        (tmp_path / name).mkdir()
        made.append(train_model(*parents, tmp_path / name, config))
    assert model_bytes(made[0]) == model_bytes(made[1])
    assert made[1].metrics["layout"]["num_processes"] == 2


@pytest.mark.slow
def test_a_preempted_job_is_requeued_and_ends_with_the_same_bytes(
    slurm: None,
    parents: tuple[Artifact, Artifact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = longer(120)
    (tmp_path / "here").mkdir()
    whole = train_model(*parents, tmp_path / "here", replace(config, parallel=TWO))

    def preempt(work: Path) -> None:
        job_id = read_job(work)["id"]
        subprocess.run(["scancel", "--signal=TERM", job_id], check=True)
        wait_until(lambda: "PENDING" in squeue(f"--jobs={job_id}", "--format=%T"))

    once_it_trains(preempt, monkeypatch, lambda work: start_now(read_job(work)["id"]))
    (tmp_path / "job").mkdir()
    made = train_model(*parents, tmp_path / "job", on(config, TWO, 2))
    assert model_bytes(made) == model_bytes(whole)
    assert made.metrics["events"] == {"preempted": 1, "resumed": 1}
    assert len(re.findall("runs on", capsys.readouterr().err)) == 2


@pytest.mark.slow
def test_a_stop_here_lets_every_rank_save_and_takes_the_job_away(
    slurm: None,
    parents: tuple[Artifact, Artifact],
    out_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_work: Path) -> None:
        raise KeyboardInterrupt

    once_it_trains(interrupt, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train_model(*parents, out_dir, on(LONG, TWO, 2))
    work = workdir(out_dir)
    assert status_as_written(work / "status.json")["outcome"] == "preempted"
    assert list((work / "checkpoints").glob("step-*"))
    assert not squeue("--me", "--states=PENDING,RUNNING,COMPLETING"), "neither live nor requeued"
    assert not read_job(work)


@pytest.mark.slow
def test_a_flow_killed_while_its_job_trains_attaches_to_it_when_it_is_run_again(
    slurm: None,
    parents: tuple[Artifact, Artifact],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out_dir = tmp_path / "out"
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.tasks.training.test_cluster_job import *\n"
        "root = Path(sys.argv[1]); (root / 'out').mkdir()\n"
        "train_model(Artifact(root / 'tokenizer', 'tokenizer'), Artifact(root / 'shards',"
        " 'shards'), root / 'out', on(longer(200), ONE))"
    )
    flow = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    wait_until(lambda: any(read_rows(p) for p in tmp_path.glob("out.work/run-*/metrics.jsonl")))
    flow.kill()
    flow.wait()
    work = workdir(out_dir)
    job_id = read_job(work)["id"]
    with pytest.raises(StageFailure, match=rf"slurm job {job_id} runs on n1 and trains this"):
        train_model(*parents, out_dir, replace(longer(200), parallel=ONE))
    capsys.readouterr()
    made = train_model(*parents, out_dir, on(longer(200), ONE))
    assert f"attached to slurm job {job_id};" in capsys.readouterr().err
    assert made.metrics["events"] == {}, "never interrupted"
    steps = [row["step"] for row in read_rows(work / "metrics.jsonl") if "train_loss" in row]
    assert steps == list(range(1, 201))


@pytest.mark.slow
def test_a_job_that_dies_is_one_line_with_slurms_word_for_it(
    slurm: None,
    parents: tuple[Artifact, Artifact],
    out_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once_it_trains(lambda work: os.kill(trainer_of(work), signal.SIGKILL), monkeypatch)
    with pytest.raises(
        StageFailure, match=r"training failed: slurm job \d+ ended as FAILED on n1 .*run again"
    ):
        train_model(*parents, out_dir, on(LONG, ONE))


def test_a_refused_submission_is_one_line_with_slurms_reason(
    slurm: None, parents: tuple[Artifact, Artifact], out_dir: Path
) -> None:
    options = replace(SLURM.slurm, options={"partition": "none"})
    config = replace(CONFIG, parallel=ONE, cluster=replace(SLURM, slurm=options))
    with pytest.raises(StageFailure, match=r"slurm refused the job .*invalid partition") as refused:
        train_model(*parents, out_dir, config)
    assert len(str(refused.value).splitlines()) == 1


def wait_until(holds: Callable[[], bool], limit_s: float = 90.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_without_the_commands_of_slurm_the_way_out_is_named(
    parents: tuple[Artifact, Artifact], out_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    with pytest.raises(StageFailure, match="squeue is not on PATH; .*cluster=local"):
        train_model(*parents, out_dir, on(CONFIG, ONE))

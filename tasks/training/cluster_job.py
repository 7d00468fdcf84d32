"""Trains in a job of a cluster: submits it, or attaches to it, and judges how it ended.

The work directory is on a file system that the job's nodes share, so everything else is as on one
machine: the trainer reads `config.json` and answers by `status.json`, metrics and checkpoints.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from llm_core.training.run_config import RunConfig
from llm_core.training.status import STATUS_FILE, status_as_written
from tasks.clusters.commands import Refused
from tasks.clusters.config import ClusterConfig
from tasks.clusters.job import JOB_FILE, Job, read_job, run_job
from tasks.clusters.scheduler import scheduler_of
from tasks.runtime.keys import digest
from tasks.runtime.stage import StageFailure
from tasks.training.on_node import recipe
from tasks.training.trainer_process import (
    LAUNCHER_S,
    LOG_FILE,
    conclude,
    raise_if_preempted,
    trainer_environment,
)


def run_in_job(
    run: RunConfig,
    workdir: Path,
    out_dir: Path,
    cluster: ClusterConfig,
    progress: Callable[[Path], None],
) -> None:
    """Train in a job until it ends, whoever submitted it. Raises as `conclude` does."""
    workdir = workdir.resolve()
    cluster.require_shared(workdir, "store")
    status_file = workdir / STATUS_FILE
    earlier = status_as_written(status_file)
    job = training_job(run, workdir, key_of(out_dir), cluster)
    try:
        ended = run_job(
            scheduler_of(cluster),
            job,
            cluster,
            watch=lambda: progress(workdir),
            is_finished=lambda: status_as_written(status_file).get("outcome") == "finished",
        )
    except BaseException as error:
        # A stop, as whoever runs the stage has turned it into Python; see `run_trainer`.
        if not isinstance(error, (Exception, KeyboardInterrupt)):
            raise_if_preempted(run, workdir)
        raise
    progress(workdir)
    cause = f"{cluster.kind} job {ended.job_id} {ended.words}"
    conclude(run, workdir, {} if ended.attached else earlier, cause)


def require_no_job(workdir: Path, cluster: ClusterConfig) -> None:
    """Raise StageFailure where a job trains in a work directory that is to be used from here."""
    if not (known := read_job(workdir)):
        return
    kind, job_id = known["scheduler"], known["id"]
    try:
        seen = scheduler_of(replace(cluster, kind=kind)).look(job_id)
    except (Refused, StageFailure) as error:
        raise StageFailure(
            f"{kind} job {job_id} may still train this, and cannot be looked up ({error}); follow"
            f" it with cluster={kind}, or remove {workdir / JOB_FILE} once it has ended"
        ) from error
    if seen.is_live:
        raise StageFailure(
            f"{kind} job {job_id} {seen.words} and trains this already; follow it with"
            f" cluster={kind}, or stop it first"
        )


def training_job(run: RunConfig, workdir: Path, key: str, cluster: ClusterConfig) -> Job:
    """The trainer as a job, named after the key of what it makes."""
    per_node = run.parallel.num_processes // cluster.num_nodes
    on_gpus = run.parallel.device != "cpu"
    num_gpus = cluster.gpus_per_node
    module = "launch" if run.parallel.num_processes > 1 else "train"
    program: tuple[str, ...] = (f"llm_core.training.{module}", "--config", f"{workdir}/config.json")
    program += ("--workdir", str(workdir))
    if cluster.num_nodes > 1:
        program += ("--num-nodes", str(cluster.num_nodes))
    # An image has a Python of its own.
    python = "python" if cluster.kind == "kubernetes" else sys.executable
    return Job(
        name=f"textmill-train-{key}",
        folder=workdir,
        log=workdir / LOG_FILE,
        command=(python, "-m", "tasks.training.on_node", recipe(), *program),
        environment=trainer_environment(),
        num_gpus=(per_node if on_gpus else 0) if num_gpus is None else num_gpus,
        grace_s=run.train.grace_s + LAUNCHER_S,
        max_restarts=run.parallel.max_restarts if cluster.num_nodes > 1 else 0,
    )


def key_of(out_dir: Path) -> str:
    """The key that the store works on in `out_dir`; of any other folder, a digest of its path."""
    name = out_dir.resolve().parent.name
    return name if re.fullmatch("[0-9a-f]{8,40}", name) else digest(str(out_dir.resolve()))

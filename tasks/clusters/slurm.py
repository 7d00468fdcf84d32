"""Runs jobs on Slurm by its own commands: sbatch, squeue, sacct and scancel.

Options go to sbatch as arguments and the program into the script as quoted words, so no value is
ever read as a command. The script starts the program once on each node and, when that was asked to
stop and has saved (code 75), puts its own job back into the queue. So a time limit or a preemption
costs the steps since SIGTERM, whatever the cluster's own rules for requeueing are.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator

from tasks.clusters.commands import Refused, call
from tasks.clusters.config import ClusterConfig
from tasks.clusters.job import STOP_FILE, Job, Sighting

SCRIPT_FILE = "job.sh"
QUEUED = frozenset(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"))
RUNNING = frozenset(
    ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
)
SIGNAL_EXTRA_S = 60
"""Slurm sends a signal up to a minute late."""
STRAGGLER_S = 60
"""After the first node of a step has ended, the others have so long."""


class Slurm:
    """Jobs of the cluster that Slurm's commands here are set up for."""

    kind = "slurm"

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    def submit(self, job: Job) -> str:
        script = job.folder / SCRIPT_FILE
        script.touch(0o600)  # words of a command may be personal
        script.write_text(batch_script(job, self._config), "utf-8")
        # What describes an allocation that this process runs in is not for the job.
        environment = {
            name: value
            for name, value in job.environment.items()
            if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SBATCH_"))
        }
        options = list(sbatch_options(job, self._config))
        said = call(["sbatch", *options, str(script)], environment)
        return said.strip().partition(";")[0]

    def find(self, job: Job) -> str | None:
        # The folder too: another store of this user may have the same key.
        said = call(["squeue", "--noheader", "--me", f"--name={job.name}", "--format=%i|%Z"])
        for line in said.splitlines():
            job_id, _, folder = line.strip().partition("|")
            if folder == str(job.folder):
                return job_id
        return None

    def look(self, job_id: str) -> Sighting:
        try:
            listed = ["--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%r|%N"]
            said = call(["squeue", *listed]).strip()
        except Refused as error:
            if "Invalid job id" not in str(error):
                raise
            said = ""
        if said:
            state, reason, nodes = said.splitlines()[0].split("|")
            return _sighting(state, reason, nodes)
        return self._look_back(job_id)

    def _look_back(self, job_id: str) -> Sighting:
        """A job that the controller has forgotten, where the cluster keeps accounts."""
        try:
            asked = ["--noheader", "--parsable2", "--allocations", f"--jobs={job_id}"]
            said = call(["sacct", *asked, "--format=State,ExitCode,NodeList"]).strip()
        except Refused:
            said = ""
        if not said:
            return Sighting("gone", "vanished: neither squeue nor sacct knows it")
        state, code, nodes = said.splitlines()[-1].split("|")
        return _sighting(state, f"exit code {code}", nodes)

    def stop(self, job_id: str) -> None:
        call(["scancel", "--state=PENDING", job_id])
        try:
            # To the processes that srun started, on every node, and not to the script.
            call(["scancel", "--signal=TERM", job_id])
        except Refused:
            if self.look(job_id).is_live:
                raise

    def kill(self, job_id: str) -> None:
        call(["scancel", job_id])


def sbatch_options(job: Job, config: ClusterConfig) -> Iterator[str]:
    """The arguments of sbatch before the script."""
    yield "--parsable"
    yield f"--job-name={job.name}"
    yield f"--chdir={job.folder}"
    # % begins a pattern of sbatch.
    yield f"--output={str(job.log).replace('%', '%%')}"
    yield "--open-mode=append"
    yield "--requeue"
    yield f"--nodes={config.num_nodes}"
    yield "--ntasks-per-node=1"
    yield f"--signal=TERM@{math.ceil(job.grace_s) + SIGNAL_EXTRA_S}"
    if job.num_gpus:
        yield f"--gpus-per-node={job.num_gpus}"
    if config.cpus_per_node is not None:
        yield f"--cpus-per-task={config.cpus_per_node}"
    if config.memory_gb_per_node is not None:
        yield f"--mem={math.ceil(config.memory_gb_per_node * 1e9 / 2**20)}M"
    if config.time_limit_min is not None:
        yield f"--time={config.time_limit_min}"
    for name, value in config.slurm.options.items():
        yield f"--{name}" if value is True else f"--{name}={value}"


def batch_script(job: Job, config: ClusterConfig) -> str:
    """The script of a job, which runs on its first node."""
    program = shlex.join(job.command)
    step = ["srun", "--kill-on-bad-exit=0", f"--wait={STRAGGLER_S}"]
    if config.cpus_per_node is not None:  # since Slurm 22.05 not taken from sbatch
        step.append(f"--cpus-per-task={config.cpus_per_node}")
    stop = shlex.quote(str(job.folder / STOP_FILE))
    lines = [
        "#!/bin/bash",
        *config.slurm.setup,
        f"{shlex.join(step)} -- {program}",
        "code=$?",
        # A code of 75 says: asked to stop, saved. 2: refused, and would be again.
        'restarts="${SLURM_RESTART_COUNT:-0}"',
        f"limit={job.max_restarts}",
        f'[ "$code" -eq {os.EX_TEMPFAIL} ] && limit={config.max_requeues}',
        f'if [ "$code" -ne 0 ] && [ "$code" -ne 2 ] && [ ! -e {stop} ] && '
        '[ "$restarts" -lt "$limit" ]; then',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        # A cluster may requeue by code itself.
        f'[ -e {stop} ] || exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _sighting(state: str, reason: str, nodes: str) -> Sighting:
    # "CANCELLED by 1000" of sacct.
    name = state.split()[0]
    if name in QUEUED:
        return Sighting("queued", f"is queued ({reason})")
    if name in RUNNING:
        return Sighting("running", f"runs on {nodes}" if name == "RUNNING" else f"is {name}")
    how = "" if reason in ("None", "") else f" ({reason})"
    where = f" on {nodes}" if nodes else ""
    return Sighting("ended", f"ended as {name}{where}{how}")

"""Starts the processes of a run on this machine with torchrun: `python -m llm_core.training.launch
--config resolved.json --workdir DIR`.

With `--num-nodes N` it is started once on each of N nodes, and starts this node's share. Which node
this is and where the first one listens is read from the variables of the scheduler (`read_node`).

A process that is killed cannot say so, and those that waited for it fail with what they saw: a
closed connection. torchrun knows which ended first, and how; that is noted in `status.json`.
Processes that are asked to stop have `train.grace_s` to save; once all have, the code is 75.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from llm_core.config import ConfigError
from llm_core.printing import note
from llm_core.process import describe_end
from llm_core.training.run_config import RunConfig, read_run_config
from llm_core.training.status import STATUS_FILE, note_death, status_as_written

TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code where the run was asked to stop and has saved, as of `llm_core.training.train`."""
REFUSED = 2
KUBERNETES_PORT = 29500
SLURM_PORTS = range(20_000, 30_000)
"""Below those that systems give to clients. Jobs that share a node take different ones."""


@dataclass(frozen=True)
class Node:
    """One machine of a run on several."""

    rank: int
    first: str
    """Address of the first node."""
    port: int
    """Where the first node listens for the others."""


def read_node(environment: Mapping[str, str], num_nodes: int) -> Node:
    """This node, from the variables of a step of Slurm or of an indexed Job of Kubernetes.

    `MASTER_ADDR` and `MASTER_PORT` go first. Raises ConfigError where nothing says which node this
    is, or another number of nodes.
    """
    in_slurm = "SLURM_STEP_ID" in environment
    rank = environment.get("SLURM_NODEID" if in_slurm else "JOB_COMPLETION_INDEX")
    # Slurm's own address of the machine that runs the batch script: that of node 0.
    first = environment.get("MASTER_ADDR") or environment.get("SLURM_LAUNCH_NODE_IPADDR")
    if rank is None or first is None:
        raise ConfigError(
            f"--num-nodes ({num_nodes}) needs the variables of a scheduler; start it with srun, or"
            " set JOB_COMPLETION_INDEX (0 on the first node) and MASTER_ADDR (the first node)"
        )
    given = environment.get("SLURM_STEP_NUM_NODES", str(num_nodes)) if in_slurm else num_nodes
    if int(given) != num_nodes or int(rank) >= num_nodes:
        raise ConfigError(
            f"--num-nodes ({num_nodes}) must be the nodes of this step, node {rank} of {given};"
            " start it once on each"
        )
    port = KUBERNETES_PORT
    if in_slurm:
        port = SLURM_PORTS[int(environment["SLURM_JOB_ID"]) % len(SLURM_PORTS)]
    return Node(int(rank), first, int(environment.get("MASTER_PORT") or port))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="resolved run config, JSON")
    parser.add_argument(
        "--workdir", type=Path, required=True, help="where checkpoints and metrics are kept"
    )
    parser.add_argument(
        "--num-nodes",
        type=int,
        default=1,
        help="machines of the run; parallel.num_processes is the total over them",
    )
    arguments = parser.parse_args(argv)
    config = read_run_config(arguments.config)
    # By the environment: torch 2.11 has no option for it.
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(config.train.grace_s))
    try:
        options = torchrun_options(config, arguments.num_nodes)
    except ConfigError as error:
        note(f"llm_core.training.launch: {error}")
        sys.exit(REFUSED)
    options += ["-m", "llm_core.training.train"]
    options += ["--config", str(arguments.config), "--workdir", str(arguments.workdir)]
    earlier = status_as_written(arguments.workdir / STATUS_FILE)
    try:
        run(parse_args(options))
    except ChildFailedError as error:
        for line in str(error).splitlines():
            note(line)
        note_first_death(arguments.workdir, error.failures)
        codes = {failure.exitcode for failure in error.failures.values()}
        sys.exit(REFUSED if codes == {REFUSED} else _has_saved(arguments.workdir, earlier) or 1)
    except SignalException as error:
        sys.exit(_has_saved(arguments.workdir, earlier) or 128 + error.sigval)


def torchrun_options(config: RunConfig, num_nodes: int) -> list[str]:
    """How torchrun starts the processes of this machine. Raises ConfigError."""
    num_processes, num_others = divmod(config.parallel.num_processes, num_nodes)
    if num_others:
        raise ConfigError(
            f"parallel.num_processes ({config.parallel.num_processes}) must be a multiple of"
            f" --num-nodes ({num_nodes}); every node has as many"
        )
    options = [f"--nproc-per-node={num_processes}"]
    if num_nodes == 1:
        return [*options, "--standalone", f"--max-restarts={config.parallel.max_restarts}"]
    node = read_node(os.environ, num_nodes)
    # Static: the first ranks are on node 0, whose scheduler script reads how the run ended. Other
    # nodes do not hear of a restart there, so the scheduler restarts all of them.
    return [
        *options,
        f"--nnodes={num_nodes}",
        f"--node-rank={node.rank}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={node.first}:{node.port}",
        "--max-restarts=0",
    ]


def _has_saved(workdir: Path, earlier: Mapping[str, Any]) -> int:
    """75 where the run has said since `earlier` that it was asked to stop and has saved, else 0."""
    status = status_as_written(workdir / STATUS_FILE)
    return TRY_AGAIN if status != earlier and status.get("outcome") == "preempted" else 0


def note_first_death(workdir: Path, failures: Mapping[int, ProcessFailure]) -> None:
    """Note how the process that ended first did, if a signal ended it.

    Times are whole seconds: of processes that ended in the same one, one with a signal counts.
    """
    rank, first = min(failures.items(), key=lambda item: (item[1].timestamp, item[1].exitcode >= 0))
    if first.exitcode >= 0 or status_as_written(workdir / STATUS_FILE).get("outcome") in (
        "finished",
        "preempted",
    ):
        return
    try:
        cause = f"rank {rank} (process {first.pid}) {describe_end(first.exitcode)}"
        note_death(workdir / STATUS_FILE, cause)
    except OSError as error:
        note(f"{workdir / STATUS_FILE} was not written: {error}")


if __name__ == "__main__":
    main()

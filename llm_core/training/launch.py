"""Starts the processes of a run on this machine with torchrun: `python -m llm_core.training.launch
--config resolved.json --workdir DIR`.

A process that is killed cannot say so, and those that waited for it fail with what they saw: a
closed connection. torchrun knows which ended first, and how; that is noted in `status.json`.
Processes that are asked to stop have `train.grace_s` to save.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from llm_core.printing import note
from llm_core.process import describe_end
from llm_core.training.run_config import read_run_config
from llm_core.training.status import STATUS_FILE, note_death, status_as_written


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="resolved run config, JSON")
    parser.add_argument(
        "--workdir", type=Path, required=True, help="where checkpoints and metrics are kept"
    )
    arguments = parser.parse_args(argv)
    config = read_run_config(arguments.config)
    # By the environment: torch 2.11 has no option for it.
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(config.train.grace_s))
    options = ["--standalone", f"--nproc-per-node={config.parallel.num_processes}"]
    options += [f"--max-restarts={config.parallel.max_restarts}", "-m", "llm_core.training.train"]
    options += ["--config", str(arguments.config), "--workdir", str(arguments.workdir)]
    try:
        run(parse_args(options))
    except ChildFailedError as error:
        for line in str(error).splitlines():
            note(line)
        note_first_death(arguments.workdir, error.failures)
        sys.exit(1)
    except SignalException as error:
        sys.exit(128 + error.sigval)


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

"""Chooses the executor of the parts of a stage: threads, processes, or this thread alone.

Threads share memory and start at once; kernels over Arrow buffers release the interpreter lock.
Processes cost an import each and help stages that spend their time in Python: `auto` starts them
once the work that is left is worth that. A cluster is opened once for a whole run and passed in.
The result is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import Protocol

from tasks.runtime.parts import PartRunner, process_executor, thread_executor

EXECUTORS = {"auto": process_executor, "thread": thread_executor, "process": process_executor}

PROCESSES_START_S = 3.0
"""What it costs, about, that worker processes start, import what they need and load compiled
code."""


class Cluster(Protocol):
    """What works on parts in place of this machine's own workers."""

    def executor(self, *variables: str) -> AbstractContextManager[Executor]:
        """Opens its executor, whose workers have these variables of the environment."""


def make_runner(
    runner: str,
    num_workers: int,
    progress: Callable[[int, int], None],
    cluster: Cluster | None = None,
) -> PartRunner:
    """A runner with `num_workers` workers, or on `cluster`; one worker of this machine needs no
    executor."""
    if cluster is not None:
        return PartRunner(make_executor=cluster.executor, progress=progress)
    make_executor = EXECUTORS[runner](num_workers) if num_workers > 1 else None
    return PartRunner(
        make_executor=make_executor,
        start_s=PROCESSES_START_S if runner == "auto" else 0.0,
        progress=progress,
    )

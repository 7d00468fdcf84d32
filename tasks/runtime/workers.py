"""Starts worker processes that get an environment of their own.

`multiprocessing` hands its own environment to every process. A worker that removes variables after
its start has them in `/proc/<pid>/environ` for as long as it lives, so the process must be started
without them. `WorkerContext` is the spawn context with that one difference. The standard library's
resource tracker, which runs no code of ours, keeps the whole environment.
"""

from __future__ import annotations

import io
import os
from multiprocessing import popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess, set_spawning_popen
from typing import Any

from tasks.runtime.environment import minimal_environment


class WorkerProcess(SpawnProcess):
    """A spawned process with the minimal environment and `variables`."""

    variables: tuple[str, ...] = ()

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)


class WorkerContext(SpawnContext):
    """Where an executor gets its processes, queues and locks from."""

    def __init__(self, variables: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._variables = variables

    def Process(self, *arguments: Any, **named: Any) -> WorkerProcess:  # type: ignore[override]
        process = WorkerProcess(*arguments, **named)
        process.variables = self._variables
        return process


class _Popen(popen_spawn_posix.Popen):
    _fds: list[int]

    def _launch(self, process_obj: WorkerProcess) -> None:
        """As in the standard library, but for the environment."""
        tracker_fd = resource_tracker.getfd()
        data = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), data)
            reduction.dump(process_obj, data)
        finally:
            set_spawning_popen(None)
        ends: list[int] = []
        child_ends: list[int] = []
        try:
            parent_reads, child_writes = os.pipe()
            ends, child_ends = [parent_reads], [child_writes]
            child_reads, parent_writes = os.pipe()
            ends, child_ends = [*ends, parent_writes], [*child_ends, child_reads]
            command = spawn.get_command_line(tracker_fd=tracker_fd, pipe_handle=child_reads)
            # A copy onto itself only says that the child inherits it.
            inherited = [
                (os.POSIX_SPAWN_DUP2, fd, fd) for fd in (*self._fds, tracker_fd, *child_ends)
            ]
            environment = minimal_environment(*process_obj.variables)
            self.pid = os.posix_spawn(
                spawn.get_executable(), command, environment, file_actions=inherited
            )
            self.sentinel = parent_reads
            with open(parent_writes, "wb", closefd=False) as stream:
                stream.write(data.getbuffer())
        finally:
            self.finalizer = util.Finalize(self, util.close_fds, ends)  # type: ignore[attr-defined]
            for fd in child_ends:
                os.close(fd)

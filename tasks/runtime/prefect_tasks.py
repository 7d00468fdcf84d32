"""Stages, and parts of stages, as Prefect tasks: the only place where a stage meets Prefect.

One task per stage, called directly in the flow's main thread, so that a cancel reaches the stage as
SIGTERM. Prefect caches and persists nothing here: the store alone decides what is there, and a hit
is shown as a `Skipped` state. A failure or a stop that the stage explains becomes a state, not a
traceback in the log.

On a cluster the parts of a stage are Prefect tasks too, submitted through Prefect's task runners
for Ray and Dask. What travels is a part and its counters, some kilobytes; documents go through the
store, which every node must see under the same path.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Cancelled, Completed, Failed, State
from prefect.task_runners import TaskRunner
from prefect.utilities.annotations import opaque

from llm_core.config import ConfigError
from llm_core.printing import one_line, publishable, shortened
from tasks.runtime.artifact import Artifact
from tasks.runtime.execute import make_artifact
from tasks.runtime.local_cluster import (
    LOOPBACK,
    RAY,
    has_ray_token,
    local_cluster,
    require_listener,
)
from tasks.runtime.parts import PartRunner
from tasks.runtime.plan import Step
from tasks.runtime.stage import StageFailure, StageInterrupted
from tasks.runtime.store import Store

MAX_REASON_CHARS = 200


def make_artifact_in_task(
    store: Store,
    step: Step,
    parents: Mapping[str, Artifact],
    config: Any,
    runner: PartRunner,
    say: Callable[[str], None],
    begun: Callable[[Path], None] = lambda out_dir: None,
) -> tuple[Artifact, bool]:
    """`tasks.runtime.execute.make_artifact` as a Prefect task run named after the artifact it
    makes."""
    stage, key = step.node.stage, step.node.key

    def make() -> tuple[Artifact, bool]:
        return make_artifact(store, step, parents, config, runner, say, begun)

    # Parents are passed for their edges in the run graph only. Opaque: Prefect would look through
    # all that an artifact's record holds, for each stage that reads it.
    edges = {name: opaque(parent) for name, parent in parents.items()}
    state = _stage_task.with_options(name=stage)(stage, key, edges, make, return_state=True)
    result: Any = state.result(raise_on_failure=False)
    if isinstance(
        result, BaseException
    ):  # also that of a cancelled state, which a plain call would return
        raise result
    return result  # type: ignore[no-any-return]


@task(task_run_name="{stage}-{key}", cache_policy=NO_CACHE, persist_result=False)
def _stage_task(
    stage: str, key: str, parents: Mapping[str, Artifact], make: Callable[[], tuple[Artifact, bool]]
) -> State | tuple[Artifact, bool]:
    try:
        artifact, made = make()
    except StageFailure as error:
        return Failed(message=publishable(error), data=error)
    except StageInterrupted as error:
        return Cancelled(message=publishable(error), data=error)
    if made:
        return artifact, made
    return Completed(
        name="Skipped", message=f"{stage} {key} is in the store", data=(artifact, made)
    )


class ClusterExecutor(Executor):
    """Calls as Prefect tasks on a Ray or Dask cluster, which is joined or started at the first
    call.

    kind: `ray` or `dask`. address: of a scheduler; None starts a cluster on this machine's
    loopback (`tasks.runtime.local_cluster`). num_workers: processes of a started cluster.
    max_in_flight: tasks that exist at once.
    """

    def __init__(
        self, kind: str, address: str | None, num_workers: int, max_in_flight: int = 64
    ) -> None:
        package = f"prefect_{kind}"
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"runner ({kind}) needs the package {package}; install textmill[scale] or use"
                " runner=process"
            )
        self._kind, self._address, self._num_workers = kind, address, num_workers
        self._variables: tuple[str, ...] = ()
        self._open = ExitStack()
        self._task_runner: TaskRunner[Any] | None = None
        # Prefect finds the flow run and its settings in context variables, which threads do not
        # inherit. Taken here, outside of any stage: the context of a task run holds its parameters,
        # and it travels with every task.
        self._context = copy_context()
        # One waiting thread for each task in flight.
        self._waiting = ThreadPoolExecutor(max_in_flight, thread_name_prefix=f"wait-for-{kind}")

    @contextmanager
    def executor(self, *variables: str) -> Iterator[Executor]:
        """This executor, whose workers get these variables of the environment and no other secret.

        A local cluster whose workers have other variables is replaced. The environment of a cluster
        that is joined is its owner's.
        """
        if variables != self._variables and not self._address:
            self._close()
        self._variables = variables
        yield self

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        if self._task_runner is None:
            with self._one_line():
                self._task_runner = self._open.enter_context(self._make_task_runner())
        return self._waiting.submit(
            self._context.copy().run, self._call, function, arguments, named
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        # The cluster first: whoever still waits for one of its tasks gets an error instead of
        # waiting on.
        self._close()
        self._waiting.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _close(self) -> None:
        self._task_runner = None
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _call(self, function: Callable[..., Any], arguments: Any, named: Mapping[str, Any]) -> Any:
        assert self._task_runner is not None
        part = {"function": function, "arguments": arguments, "named": dict(named)}
        with self._one_line():
            future = self._task_runner.submit(_part_task, part)
        try:
            return future.result()
        except Exception as error:
            # Errors of a part pass; errors of the libraries are about workers.
            if type(error).__module__.partition(".")[0] in ("ray", "distributed"):
                raise self._failure(error) from error
            raise

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """A cluster that cannot be reached is one StageFailure."""
        try:
            yield
        except StageFailure:
            raise
        except (OSError, RuntimeError) as error:  # Ray raises the latter about its version
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StageFailure:
        reason = shortened(one_line(error) or type(error).__name__, MAX_REASON_CHARS)
        return StageFailure(
            f"the {self._kind} cluster at {self._address or LOOPBACK} has failed ({reason});"
            " finished parts are kept: run again once it has workers, or use runner=process"
        )

    def _make_task_runner(self) -> TaskRunner[Any]:
        if self._kind == "ray":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if not self._address:
                for name, value in RAY.items():
                    os.environ.setdefault(name, value)
            elif has_ray_token():
                # `ray start` requires a token, which clients send only in this mode.
                os.environ.setdefault("RAY_AUTH_MODE", RAY["RAY_AUTH_MODE"])
            from prefect_ray import RayTaskRunner

            if self._address:
                require_listener(self._address)
                return RayTaskRunner(self._address)
            address, _ = self._local_cluster()
            return RayTaskRunner(address, {"log_to_driver": False})
        from prefect_dask import DaskTaskRunner

        if self._address:
            require_listener(self._address)
            return DaskTaskRunner(address=self._address)
        address, security = self._local_cluster()
        return DaskTaskRunner(address=address, client_kwargs={"security": security})

    def _local_cluster(self) -> tuple[str, Any]:
        return self._open.enter_context(
            local_cluster(self._kind, self._num_workers, self._variables)
        )


@task(name="part", cache_policy=NO_CACHE, persist_result=False)
def _part_task(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    return function(*arguments, **named)

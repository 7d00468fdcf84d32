"""Stages as Prefect tasks: the only place where a stage meets Prefect.

One task per stage, called directly in the flow's main thread, so that a cancel reaches the stage as SIGTERM.
Prefect caches and persists nothing here: the store alone decides what is there, and a hit is shown as a
`Skipped` state. A failure or a stop that the stage explains becomes a state, not a traceback in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Cancelled, Completed, Failed, State

from tasks.artifact import Artifact
from tasks.execute import make_artifact
from tasks.parts import PartRunner
from tasks.plan import Step
from tasks.stage import StageFailure, StageInterrupted
from tasks.store import Store


def make_artifact_in_task(
    store: Store,
    step: Step,
    parents: Mapping[str, Artifact],
    config: Any,
    runner: PartRunner,
    say: Callable[[str], None],
) -> tuple[Artifact, bool]:
    """`tasks.execute.make_artifact` as a Prefect task run named after the artifact it makes."""
    stage, key = step.node.stage, step.node.key

    def make() -> tuple[Artifact, bool]:
        return make_artifact(store, step, parents, config, runner, say)

    # Parents are passed for their edges in the run graph only.
    state = _stage_task.with_options(name=stage)(stage, key, dict(parents), make, return_state=True)
    result: Any = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):  # also that of a cancelled state, which a plain call would return
        raise result
    return result  # type: ignore[no-any-return]


@task(task_run_name="{stage}-{key}", cache_policy=NO_CACHE, persist_result=False)
def _stage_task(
    stage: str, key: str, parents: Mapping[str, Artifact], make: Callable[[], tuple[Artifact, bool]]
) -> State | tuple[Artifact, bool]:
    try:
        artifact, made = make()
    except StageFailure as error:
        return Failed(message=str(error), data=error)
    except StageInterrupted as error:
        return Cancelled(message=str(error), data=error)
    if made:
        return artifact, made
    return Completed(name="Skipped", message=f"{stage} {key} is in the store", data=(artifact, made))

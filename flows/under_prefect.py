"""Makes a Prefect flow run of a run: its end is a state with a message a person can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Completed, Failed, State

from flows.compose import compose
from flows.parameters import reveal
from flows.run import Run, describe, open_run, summarize
from llm_core.config import ConfigError
from llm_core.printing import get_logger, publishable
from tasks.runtime.prefect_tasks import ClusterExecutor, make_artifact_in_task
from tasks.runtime.stage import StageFailure, StageInterrupted


def run_flow(
    name: str, target: str, overrides: Sequence[str], stages: Callable[[Run], None]
) -> State:
    """Run `stages` up to `target` as the current flow run.

    A user error becomes Failed, a stop becomes Cancelled, each with its one line and the
    exception as data; anything else is a defect and raises. A completed run carries `summarize` of
    itself and its description.
    """
    for prefect_logger in ("prefect.flow_runs", "prefect.task_runs"):
        get_logger(prefect_logger)
    try:
        overrides = reveal(overrides)
        config = compose(overrides)
        cluster = None
        if config.runner in ("ray", "dask"):
            cluster = ClusterExecutor(config.runner, config.runner_address, config.workers)
        with open_run(name, target, config, overrides, make_artifact_in_task, cluster) as run:
            run.record.process |= {"prefect_flow_run_id": str(_flow_run_id())}
            stages(run)
    except (ConfigError, StageFailure) as error:
        return Failed(message=publishable(error), data=error)
    except (StageInterrupted, TerminationSignal, KeyboardInterrupt) as error:
        return Cancelled(
            message=publishable(error) or "interrupted; the next run resumes here", data=error
        )
    description = describe(run)
    # To Prefect's own log: a command line shows the description itself.
    get_run_logger().info(description)
    message = "completed with quarantine" if run.quarantined else "completed"
    return Completed(message=message, data={"summary": summarize(run), "description": description})


def _flow_run_id() -> object:
    context = FlowRunContext.get()
    return context.flow_run.id if context and context.flow_run else None

"""Makes a Prefect flow run of a run: its end is a state with a message a person can read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
from prefect import Flow, get_run_logger, tags
from prefect.client.orchestration import get_client
from prefect.exceptions import Pause, TerminationSignal
from prefect.runtime import deployment, flow_run
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    get_current_settings,
    temporary_settings,
)
from prefect.states import Cancelled, Completed, Crashed, Failed, State

from flows.commands.table import command_of
from flows.compose import compose
from flows.live.announced import LiveRun, announced
from flows.live.flow_run_page import was_paused, watched
from flows.notifications.config import is_personal
from flows.run import Run, describe, ending, open_run, summarize
from flows.run_config import RunConfig
from flows.services.local import STATE_VARIABLE, WORKER_VARIABLE, server_name
from flows.services.prefect_api import TAG, PrefectApi
from flows.services.registry import ServiceError
from flows.stops import STOPS, Pruned, Terminated
from llm_core.config import ConfigError
from llm_core.printing import get_logger, publishable
from llm_core.process import terminate_with_parent
from llm_core.secrets import MASK, mask_secrets
from tasks.runtime.prefect_tasks import ClusterExecutor, make_artifact_in_task
from tasks.runtime.stage import StageFailure

# Prefect stores and shows the parameters of flow runs. So a flow run of this process is given
# masked overrides, and looks up in here what they stand for. Parameters of a deployment are what
# was typed into Prefect, and stay that.
_WITHHELD: dict[str, str] = {}
# Likewise, what this process has announced of the run that it is about to start as a flow run.
_ANNOUNCED: list[LiveRun] = []


def withhold(overrides: Sequence[str]) -> list[str]:
    """`overrides` as they may be shown."""
    shown = [_shown(override) for override in overrides]
    pairs = zip(shown, overrides, strict=True)
    _WITHHELD.update({mask: override for mask, override in pairs if mask != override})
    return shown


def _shown(override: str) -> str:
    return (
        f"{override.partition('=')[0]}={MASK}" if is_personal(override) else mask_secrets(override)
    )


def reveal(overrides: Sequence[str]) -> list[str]:
    """What overrides of this process stood for before they were masked."""
    return [_WITHHELD.get(override, override) for override in overrides]


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
        _end_with_worker()
        overrides = reveal(overrides)
        config = compose(overrides)
        if config.cluster.submits == "flow":
            from flows.cluster_job import run_in_job

            summary, description = run_in_job(command_of(name), overrides, config)
            get_run_logger().info(description)
            return Completed(data={"summary": summary, "description": description})
        cluster = None
        if config.runner in ("ray", "dask"):
            cluster = ClusterExecutor(config.runner, config.runner_address, config.workers)
        with _announced(name, overrides, config) as live:
            api = _api_in_use()
            live.note_flow_run(server_name(_state(config), api.url), str(flow_run.id))
            made = open_run(name, target, config, overrides, make_artifact_in_task, cluster, live)
            again = deployment.id is not None
            with made as run, watched(run, api, again), _our_termination():
                stages(run)
    except (ConfigError, StageFailure) as error:
        return Failed(message=publishable(error), data=error)
    except Pruned as error:
        return Cancelled(name="Pruned", message=publishable(error), data=error)
    except (*STOPS, TerminationSignal) as error:
        _leave_if_paused()
        message = publishable(error) or "interrupted; the next run resumes here"
        if _worker_has_died():
            return Crashed(message=f"its worker has ended: {message}", data=error)
        return Cancelled(message=message, data=error)
    summary, description = summarize(run), describe(run)
    # To Prefect's own log: a command line shows the description itself.
    get_run_logger().info(description)
    return Completed(message=ending(summary), data={"summary": summary, "description": description})


def run_in_foreground(
    flow: Flow[..., Any], overrides: Sequence[str], url: str, live: LiveRun
) -> tuple[dict[str, Any], str]:
    """Summary and description of a flow run in this process. Raises what the run raised.

    url: of the Prefect server in use. live: what this process has announced.
    """
    _ANNOUNCED[:] = [live]
    with _our_termination():
        try:
            # A flow run ends by waiting a second for its heartbeat; nobody watches over a run in
            # the foreground.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), tags(TAG):
                state = flow(overrides=withhold(overrides), return_state=True)
        except httpx.TransportError as error:
            raise ServiceError(
                f"the Prefect server at {url} is unavailable ({error}); finished work is kept, run"
                " again"
            ) from error
        result = state.result(raise_on_failure=False)
        if isinstance(result, BaseException):
            raise result
    if state.is_cancelled():
        raise Terminated(state.message or "cancelled")
    return result["summary"], result["description"]


def _announced(
    name: str, overrides: Sequence[str], config: RunConfig
) -> AbstractContextManager[LiveRun]:
    """What this process has announced of the run; a worker's flow run does it here."""
    if _ANNOUNCED:
        return nullcontext(_ANNOUNCED.pop())
    return announced(name, overrides, config, _state(config))


def _state(config: RunConfig) -> Path:
    """The state folder of the worker that runs this; overrides of the run may name another."""
    return Path(os.environ.get(STATE_VARIABLE, config.state))


def _api_in_use() -> PrefectApi:
    """The server that Prefect's client talks to: its settings have more sources than the
    environment."""
    api = get_current_settings().api
    auth, key = (secret and secret.get_secret_value() for secret in (api.auth_string, api.key))
    return PrefectApi(str(api.url).rstrip("/"), auth, key)


def _leave_if_paused() -> None:
    """End this flow run as Prefect ends one that is suspended, where that is why it stopped."""
    if was_paused():
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(flow_run.id).state
        raise Pause(state=state)


def _end_with_worker() -> None:
    """Let a flow run of the local worker stop, and save, when its worker dies: nobody would read
    what it prints, and nobody could cancel it."""
    if worker := os.environ.get(WORKER_VARIABLE):
        terminate_with_parent(int(worker))


def _worker_has_died() -> bool:
    worker = os.environ.get(WORKER_VARIABLE)
    return worker is not None and os.getppid() != int(worker)


@contextmanager
def _our_termination() -> Iterator[None]:
    """Prefect's exception for SIGTERM becomes ours, which modules without Prefect know."""
    try:
        yield
    except TerminationSignal as error:
        raise Terminated(str(error)) from error

"""Records a run whose stages are all in the store on a Prefect server, without Prefect's engine.

Loading the engine and driving a flow run with it takes two seconds of processor time, more than
such a run itself. So a few requests tell the server what the engine would have told it: a
flow run, a `Skipped` task run for each stage with its edges, the page's table, and the description
as its log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from flows.live.announced import LiveRun
from flows.live.flow_run_page import watched
from flows.run import Run
from flows.services.prefect_api import PATIENCE_S, TAG, PrefectApi, Refused, Unreachable
from flows.services.registry import ServiceError
from flows.stops import STOPS
from llm_core.printing import publishable
from tasks.runtime.graph import STAGES
from tasks.runtime.store import now


@dataclass(frozen=True)
class RecordedRun:
    """The flow run of a cached run."""

    api: PrefectApi
    flow_run_id: str

    def show(self, run: Run) -> None:
        """A task run for each stage that the run found, and the page's table."""
        found: dict[str, str] = {}
        for name, outcome in run.outcomes.items():
            key = outcome.artifact.key
            said = f"{name} {key} is in the store"
            parents = [found[parent] for parent in STAGES[name].parents if parent in found]
            task_run = {
                "flow_run_id": self.flow_run_id,
                "task_key": name,
                "dynamic_key": "0",
                "name": f"{name}-{key}",
                "tags": [TAG],
                "task_inputs": {
                    "parents": [{"input_type": "task_run", "id": parent} for parent in parents]
                },
                "state": {"type": "COMPLETED", "name": "Skipped", "message": said},
            }
            found[name] = self.api.ask("POST", "/task_runs/", task_run)["id"]
        with watched(run, self.api):
            pass

    def finish(self, message: str, description: str) -> None:
        """The run has completed."""
        log = {
            "flow_run_id": self.flow_run_id,
            "name": "prefect.flow_runs",
            "level": logging.INFO,
            "message": description,
            "timestamp": now(),
        }
        self.api.ask("POST", "/logs/", [log])
        self.end("COMPLETED", message)

    def end(self, state_type: str, message: str) -> None:
        self.api.set_state("flow_runs", self.flow_run_id, state_type, message)


@contextmanager
def recorded(api: PrefectApi, server: str, live: LiveRun) -> Iterator[RecordedRun]:
    """Record a flow run for the run that this process has announced; it ends as the block does.

    server: as it is announced. Raises ServiceError where the server does not answer.
    """
    api = replace(api, limit_s=PATIENCE_S)
    try:
        flow = api.ask("POST", "/flows/", {"name": live.flow})
        flow_run = {
            "flow_id": flow["id"],
            "name": live.name,
            "parameters": {"overrides": live.overrides},
            "tags": [TAG],
            "state": {"type": "RUNNING"},
        }
        page = RecordedRun(api, api.ask("POST", "/flow_runs/", flow_run)["id"])
        live.note_flow_run(server, page.flow_run_id)
        try:
            yield page
        except STOPS as error:
            page.end("CANCELLED", publishable(error) or "interrupted")
            raise
        except (Unreachable, Refused):
            raise
        except Exception as error:
            page.end("FAILED", publishable(error))
            raise
    except (Unreachable, Refused) as error:
        raise ServiceError(
            f"the Prefect server at {api.url} does not take this run ({error}); all of its"
            " results are in the store: orchestrator=none shows them"
        ) from error

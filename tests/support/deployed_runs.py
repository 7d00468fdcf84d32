"""Runs of a deployment on a server and a worker of their own, as `textmill up` starts them: small
enough to be killed many times."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.live.announced import LiveRun, read_live
from flows.progress import stage_progress
from flows.services.local import mlflow_ui, up
from flows.services.prefect_api import ACTIVE, ENDED, PATIENCE_S, PrefectApi, Unreachable
from flows.services.processes import descendants, may_be_alive, proc_folders, start_time
from flows.services.registry import Registry
from tests.support.whole_runs import SMALL

NUM_STEPS = 800
_OVER = ("tracking", "orchestrator", "train.num_steps", "train.checkpoint_every")
OVERRIDES = [
    *(word for word in SMALL if word.partition("=")[0] not in _OVER),
    f"train.num_steps={NUM_STEPS}",
    "train.checkpoint_every=50",
    "train.validate_every=400",
    "num_workers=1",
]


@dataclass
class Deployed:
    """`textmill up` over a folder, and runs of `pipeline/local` on it."""

    place: Path
    api: PrefectApi
    said: list[str]

    @property
    def state(self) -> Path:
        return self.place / "state"

    def up(self) -> None:
        api = PrefectApi.local(self.state, up(self.state, self.said.append))
        self.api = replace(api, limit_s=PATIENCE_S)

    def all_up(self) -> None:
        """`textmill up`, and MLflow's server, which that leaves to `textmill ui`."""
        self.up()
        mlflow_ui(self.state)

    def submit(self, *overrides: str) -> str:
        """The id of a new flow run."""
        places = [f"store={self.place / 'store'}", f"state={self.state}"]
        deployment = self.api.ask("GET", "/deployments/name/pipeline/local")["id"]
        body = {
            "parameters": {"overrides": [*OVERRIDES, *overrides, *places]},
            "state": {"type": "SCHEDULED"},
        }
        made = self.api.ask("POST", f"/deployments/{deployment}/create_flow_run", body)
        return str(made["id"])

    def run(self, flow_run_id: str) -> dict[str, Any]:
        return dict(self.api.ask("GET", f"/flow_runs/{flow_run_id}"))

    def live(self, flow_run_id: str) -> LiveRun | None:
        return next((r for r in read_live(self.state) if r.flow_run_id == flow_run_id), None)

    def processes(self, flow_run_id: str) -> dict[str, list[int]]:
        """{what: its processes}, of the services and of a flow run, as far as they are there."""
        services = Registry(self.state)
        alive = [name for name in ("server", "worker", "mlflow") if services.alive(name)]
        found = {name: [int(services.get(name)["pid"])] for name in alive}
        wanted = f"PREFECT__FLOW_RUN_ID={flow_run_id}".encode()
        for folder in proc_folders():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    what = "trainer" if b"llm_core.training.train" in words else "flow"
                    found.setdefault(what, []).append(int(folder.name))
        return found

    def kill(self, flow_run_id: str, victims: Sequence[str]) -> set[str]:
        """kill -9, all of them at once; which of them were there."""
        processes = self.processes(flow_run_id)
        for pid in [pid for victim in victims for pid in processes.get(victim, [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return processes.keys() & {*victims}

    def has_ended(self, flow_run_id: str) -> bool:
        return self.run(flow_run_id)["state_type"] in ENDED

    def reaches(self, moment: str, flow_run_id: str) -> bool:
        """Whether a run is at a moment: `starting`, when its process has been started, in the stage
        of a name, or at `step N`."""
        live = self.live(flow_run_id)
        if moment == "starting":
            return "flow" in self.processes(flow_run_id)
        if live is None:
            return False
        if moment.startswith("step "):
            progress = stage_progress(live) if live.stage == "train" else None
            return progress is not None and progress.done >= int(moment.split()[1])
        return live.stage == moment

    def others(self, flow_run_id: str) -> list[str]:
        """What is not at an end of all flow and task runs but those of one flow run."""
        runs = [run for run in self.api.flow_runs(ACTIVE) if run["id"] != flow_run_id]
        state = {"state": {"type": {"any_": list(ACTIVE)}}}
        tasks = self.api.pages("/task_runs/filter", task_runs=state)
        tasks_of_others = [task for task in tasks if task["flow_run_id"] != flow_run_id]
        return [f"{run['name']} {run['state_type']}" for run in (*runs, *tasks_of_others)]

    def cancel(self, flow_run_id: str) -> None:
        """Cancel a run and wait until nothing of it is left."""
        state = {"state": {"type": "CANCELLING"}}
        self.api.ask("POST", f"/flow_runs/{flow_run_id}/set_state", state)
        wait_for(lambda: self.has_ended(flow_run_id), 120)
        wait_for(lambda: not {"flow", "trainer"} & self.processes(flow_run_id).keys(), 60)


@contextlib.contextmanager
def deployed(place: Path) -> Iterator[Deployed]:
    """Services over a folder, and nothing left of them or their runs at the end."""
    found = Deployed(place, PrefectApi(""), [])
    try:
        found.all_up()
        yield found
    finally:
        from flows.services.local import down

        services = Registry(found.state)
        roots = [
            services.get(n)["pid"] for n in ("worker", "server", "mlflow") if services.alive(n)
        ]
        started = set(descendants(roots))
        started |= {run.process["pid"] for run in read_live(found.state) if not run.is_dead}
        down(found.state)
        for pid in started:
            if start_time(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def wait_for(
    condition: Callable[[], bool], limit_s: float, what: str = "", every_s: float = 0.25
) -> float:
    """Seconds until a condition holds; a server that is away for a moment counts as no."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(Unreachable):
            if condition():
                return time.monotonic() - began
        assert time.monotonic() - began < limit_s, f"not within {limit_s} s: {what}"
        time.sleep(every_s)


def is_alive(live: LiveRun | None) -> bool:
    return live is not None and may_be_alive(live.process)

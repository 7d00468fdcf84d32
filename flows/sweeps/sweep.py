"""Runs the points of a sweep, and judges it by the files that its jobs leave.

A job may run in any process, so it writes how it ended to a file; one that left no code has died.
Counts, exit code, results and the status in MLflow come from these files. A job that fails costs
its own point; one that is stopped stops the sweep. A sweep kept by Optuna (`search`) resumes: it is
found by its settings, its points, and what its runs would be made of.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.commands.table import FLOWS
from flows.compose import RunConfig, compose
from flows.console import say, warn
from flows.notifications.config import without_notify
from flows.run import decide
from flows.stops import STOPS, sigterm_raises
from flows.sweeps.config import SweepConfig
from flows.sweeps.job import Ending, Point, SweepJob, read_ending
from flows.sweeps.launch import launch
from flows.sweeps.points import Dimension, corners, dimensions, further, listed_points
from flows.sweeps.results import SweepResult
from flows.sweeps.search import Search
from flows.tracking.described import describe_points, name_of_sweep, tags_of_origin
from flows.tracking.headline import HEADLINE
from flows.tracking.mlflow_log import SWEEP_TAG
from flows.tracking.runs import Tracker
from llm_core.config import ConfigError, to_plain
from llm_core.locks import lock_if_free
from llm_core.printing import one_line, show
from tasks.runtime.graph import ancestors
from tasks.runtime.keys import digest
from tasks.runtime.store import now


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs: decided and checked, before any of it begins."""

    flow: str
    space: Sequence[Dimension]
    listed: Sequence[Sequence[str]]
    """Its points, where all combinations are run; empty where they are searched."""
    examples: Sequence[Sequence[str]]
    """Points that were checked: all of them, or those with every value of one setting."""
    configs: Sequence[RunConfig]
    """Of these."""
    hydra_overrides: Sequence[str]

    @property
    def config(self) -> RunConfig:
        """Of the first point: it says where the sweep is kept and tracked."""
        return self.configs[0]

    @property
    def identity(self) -> str:
        """Digest of all that decides which points a search has, and what they give."""
        store, plan = decide(self.config, FLOWS[self.flow].target)
        sweep = self.config.sweep
        judged = (sweep.objective, sweep.maximizes, sweep.sampler, sweep.pruner, sweep.seed)
        return digest(
            {
                "target": plan[FLOWS[self.flow].target].node.key,
                "space": [to_plain(one) for one in self.space],
                "judged": list(judged),
                "store": str(store.root),
            }
        )


def read_sweep(flow: str, overrides: Sequence[str], hydra_overrides: Sequence[str]) -> Sweep:
    """The sweep that overrides describe. Raises ConfigError for a point that cannot be run."""
    given = dimensions(overrides)
    config = compose([*corners(given)[0], *hydra_overrides]).sweep
    space = [*given, *further(config.params, given)]
    listed = listed_points(space) if config.sampler == "all" else []
    examples = listed or corners(space)
    # Every point is checked before the first one runs.
    configs = [compose([*point, *hydra_overrides]) for point in examples]
    if config.is_search:
        _require_objective(flow, config)
        varying = [one.key for one in space if one.varies]
        if not varying or len(set(varying)) < len(varying):
            raise ConfigError(
                "a search needs settings that vary, each once; give values or an interval, as in"
                " 'optim.lr=tag(log,interval(1e-4,1e-2))'"
            )
    return Sweep(flow, space, listed, examples, configs, hydra_overrides)


def run_sweep(sweep: Sweep) -> SweepResult:
    """Run each point of a sweep, or those that a search asks for and has not had yet."""
    config = sweep.config
    sweeps = config.state.resolve() / "sweeps"
    folder = sweeps / f"{now()[:10]}-{uuid.uuid4().hex[:8]}"
    if config.sweep.is_search:
        name = sweep.identity[:8]
        # A search that was begun on an earlier day has the date of that day.
        folder = next(sweeps.glob(f"*-{name}"), sweeps / f"{now()[:10]}-{name}")
    folder.mkdir(parents=True, exist_ok=True)
    with lock_if_free(folder / "lock") as is_free:
        if not is_free:
            raise ConfigError(
                f"sweep {folder.name} is running in another process; wait for it, or stop it"
            )
        return _run_alone(sweep, folder)


class Listed:
    """The points of a sweep that runs all combinations."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points, self.total = points, len(points)

    def batches(self, size: int | None) -> Iterator[Sequence[Point]]:
        size = size or self.total
        for first in range(0, self.total, size):
            yield self._points[first : first + size]

    def points(self) -> Sequence[Point]:
        return self._points


def _run_alone(sweep: Sweep, folder: Path) -> SweepResult:
    config, sweep_id = sweep.config, folder.name
    resolved = [one.resolved() for one in sweep.configs]
    described = describe_points(sweep_id, sweep.examples, resolved)
    source: Listed | Search
    if config.sweep.is_search:
        source = Search(folder, sweep.space, config.sweep, sweep.listed, described[0])
        if source.num_final:
            say(f"sweep {sweep_id}: resumed, {source.num_final} of {source.total} runs are done")
    else:
        pairs = enumerate(zip(sweep.listed, described, strict=True))
        source = Listed([Point(number, point, about) for number, (point, about) in pairs])
    tracker, outcome = Tracker(config.tracking, config.state, sweep_id), "failed"
    # One MLflow run for the sweep, under our own id, by which its runs find it.
    given = " ".join(dict.fromkeys(o for one in sweep.examples for o in without_notify(one)))
    tags = {"overrides": given, SWEEP_TAG: sweep_id, **tags_of_origin(f"{sweep.flow} -m")}
    tracker.begin(
        name_of_sweep(sweep.flow, described),
        tags,
        now(),
        {},
        {},
        swept=list(described[0].swept),
        objective=(config.sweep.objective, config.sweep.maximizes),
    )
    try:
        with sigterm_raises():
            _launch(sweep, source, SweepJob(sweep.flow, folder, source.total))
        result = SweepResult.read(folder, source.points(), config.sweep)
        outcome = result.outcome
        say(f"sweep: {result.describe()}; MLflow: {tracker.describe() or 'not tracked'}")
    except STOPS:
        outcome = "interrupted"
        raise
    finally:
        tracker.finish(outcome)
        file = SweepResult.read(folder, source.points(), config.sweep).write(folder, sweep.flow)
    _show(result, sweep, file)
    return result


def _show(result: SweepResult, sweep: Sweep, file: Path) -> None:
    """The table, the best run, how to compare them, and all of it in the last line as JSON."""
    known = result.as_json(file.parent.name, sweep.flow)
    show(result.table())
    if best := known["best"]:
        value = best["results"][known["objective"]]
        show(f"\nbest     run {best['number']}, {known['objective']} {value:.4g}: {best['run_id']}")
    if len({one["run_id"] for one in known["points"] if one["run_id"]}) > 1:
        store = sweep.config.shared or sweep.config.store
        show(f"compare  textmill compare {known['sweep']} store={store}")
    counts = {"runs": len(result.codes), "failed": sum(code != 0 for code in result.codes)}
    del known["points"]
    show(json.dumps({**known, **counts, "results": str(file)}), flush=True)


def _launch(sweep: Sweep, source: Listed | Search, job: SweepJob) -> None:
    """Raises a stop of the sweep itself, and ConfigError where the launcher began no point."""

    def batches(size: int | None) -> Iterator[Sequence[Sequence[str]]]:
        for batch in source.batches(size):
            job.points += batch
            yield [point.overrides for point in batch]

    def endings() -> list[Ending]:
        return [read_ending(job.folder, point.number) for point in job.points]

    try:
        launch(sweep.examples[0], batches, sweep.hydra_overrides, job)
    except STOPS:
        if not any(ending.state == "stopped" for ending in endings()):
            raise  # it was the sweep that was stopped, not one of its jobs
    except Exception as error:
        if not any(ending.has_begun for ending in endings()):
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the launcher cannot run this sweep ({one_line(error)}); correct its settings"
            ) from error
        warn(f"the launcher gave up: {one_line(error)[:300]}")


def _require_objective(flow: str, config: SweepConfig) -> None:
    """Raise ConfigError where no run of a flow has the number that a search needs."""
    stages = HEADLINE[config.objective].stages
    reached = ancestors(FLOWS[flow].target)
    if not set(stages) & set(reached):
        flows = [name for name, entry in FLOWS.items() if stages[-1] in ancestors(entry.target)]
        raise ConfigError(
            f"sweep.objective ({config.objective}) is measured by {stages[-1]}, which {flow} does"
            f" not run; use textmill {flows[0]}, or another objective"
        )

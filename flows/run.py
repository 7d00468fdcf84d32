"""One run of stages: plan, make each artifact once, keep the record, tell the tracker.

`open_run` gives a flow a `Run`; `run.stage` makes or finds one artifact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flows.chains import alone_in_chain, follow_chain
from flows.compose import RunConfig
from flows.console import Progress, in_and_out, own_drops, say
from flows.console import table as show_table
from flows.live.announced import LiveRun, announced
from flows.records import RunRecord, new_record, write_record
from flows.refresh.changes import Changes, report_config, reported_before
from flows.refresh.nights import as_night
from flows.refresh.series import pinned_artifacts, recorded_series, require_kept
from flows.stops import STOPS, Pruned
from flows.sweeps.pruning import Pruning
from flows.tracking.described import PointOfSweep
from flows.tracking.headline import headline
from flows.tracking.runs import Tracker, make_tracker
from llm_core.config import ConfigError, plain_defaults
from llm_core.fingerprint import device_fingerprint
from tasks.report.quantities import plural
from tasks.report.run import earlier_documents
from tasks.runtime.artifact import ARTIFACT_FILE, Artifact, ArtifactMismatch, load_artifact
from tasks.runtime.graph import STAGES
from tasks.runtime.inputs import InputDigests
from tasks.runtime.parts import Cluster, make_runner
from tasks.runtime.plan import Plan, Step, make_nodes, make_plan
from tasks.runtime.store import Node, Store, now

MakeArtifact = Callable[..., tuple[Artifact, bool]]
"""`tasks.runtime.execute.make_artifact`, or the same within a Prefect task."""


@dataclass(frozen=True)
class Output:
    """What a stage gave: its artifact, or None where it is not there and nothing in this run needs
    it."""

    stage: str
    artifact: Artifact | None


@dataclass(frozen=True)
class Outcome:
    """How one stage went in this run."""

    artifact: Artifact
    cached: bool
    elapsed_s: float
    """Of this run: what a cached stage took is the time to find it."""


@dataclass
class Run:
    """A run in progress: what is decided, and what has been made."""

    config: RunConfig
    store: Store
    plan: Plan
    record: RunRecord
    tracker: Tracker
    make: MakeArtifact
    live: LiveRun
    pruning: Pruning
    cluster: Cluster | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    on_stage: Callable[[], None] = lambda: None
    """Called when a stage begins or has ended."""
    changes: Changes | None = None
    """What a refresh changed since the one before it."""

    def stage(self, name: str, *parents: Output) -> Output:
        """Make the artifact of a stage, or find it; what is missing and not needed is passed
        over."""
        assert tuple(p.stage for p in parents) == STAGES[name].parents, (
            f"{name} takes {STAGES[name].parents}"
        )
        step = next((s for s in self.plan.steps if s.node.stage == name), None)
        if step is None or (not step.needed and step.why != "cached"):
            return Output(name, None)
        if step.runs:
            cost = self._rebuilding(step) if step.is_damaged else ""
            say(f"{name} {step.node.key}: {step.why}{cost}")
        given = {p.stage: p.artifact for p in parents if p.artifact is not None}
        progress = Progress(name, with_clock=step.runs and not STAGES[name].shows_progress)

        def note_parts(finished: int, total: int) -> None:
            progress(finished, total)
            self.live.note_parts(finished, total)

        runner = make_runner(self.config.runner, self.config.workers, note_parts, self.cluster)
        started_at, began = now(), time.perf_counter()
        if step.runs:
            self.live.note_stage(name, step.node.key)
            self.on_stage()
        begun = partial(self._begun, step.node)
        config = self.config.stages[name]
        before = step.node.config.get("before", {}) if name == "report" else {}
        if before:
            config = report_config(self.config, before)
        try:
            # The report reads their folders, which a shared store may not have fetched yet.
            for of_stage, key in before.items() if step.runs else ():
                self.store.bring(self.store.path(of_stage, key))
            artifact, made = self.make(self.store, step, given, config, runner, say, begun)
        except BaseException as error:
            self.tracker.stage_failed(step.node, started_at, error)
            raise
        finally:
            progress.close()
            self.pruning.stage_ended()
        self.outcomes[name] = Outcome(artifact, not made, time.perf_counter() - began)
        if made:
            say(f"{name} {step.node.key}: done in {artifact.record['elapsed_s']:.1f} s")
        self.tracker.stage_done(step.node, artifact, given, made)
        if made:
            self.on_stage()
        return Output(name, artifact)

    def _begun(self, node: Node, out_dir: Path) -> None:
        self.tracker.stage_started(node, out_dir)
        self.pruning.stage_started(node, out_dir)

    def _rebuilding(self, step: Step) -> str:
        """The cost of rebuilding a damaged artifact, if its record can still be read."""
        with suppress(ArtifactMismatch):
            if lost := load_artifact(self.store.path(step.node.stage, step.node.key)):
                return f"; rebuilding, which took {lost.record['elapsed_s']:,.1f} s"
        return "; rebuilding"

    @property
    def artifacts(self) -> dict[str, Artifact]:
        return {name: outcome.artifact for name, outcome in self.outcomes.items()}

    @property
    def report(self) -> Path | None:
        return self.artifacts["report"].path / "report.html" if "report" in self.outcomes else None

    @property
    def quarantined(self) -> int:
        return sum(
            int(a.counters.get("quarantined", 0))
            for a in self.artifacts.values()
            if a.stage == "ingest"
        )


def decide(config: RunConfig, target: str) -> tuple[Store, Plan]:
    """The plan of a run. Imports neither torch nor an orchestrator, reads no document that it has
    seen before."""
    store = config.open_store()
    for folder in (config.stages["dedup"].index, config.stages["shards"].earlier):
        if folder is not None:
            store.bring(folder.resolve())
    config, _ = follow_chain(config)
    _require_sound_index(store, config, to_be_read=False)
    try:
        digests = InputDigests(store.digests_file)
        pinned = pinned_artifacts(config, store)
        device = device_fingerprint()
        nodes = make_nodes(target, config.stages, digests, device, pinned)
        if before := reported_before(config, store, nodes):
            configs = {**config.stages, "report": report_config(config, before)}
            nodes = make_nodes(target, configs, digests, device, pinned)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error.filename} does not exist; name files that are there (a relative path starts"
            " here)"
        ) from error
    plan = make_plan(store, nodes, target, config.start, config.only, config.force)
    require_kept(plan, pinned)
    # Checking digests reads the whole index, which only a run of dedup does anyway.
    if any(step.runs for step in plan.steps if step.node.stage == "dedup"):
        _require_sound_index(store, config, to_be_read=True)
    return store, plan


def _require_sound_index(store: Store, config: RunConfig, to_be_read: bool) -> None:
    """Raise ConfigError for an index that is damaged: as those of any other input, its bytes would
    just be another key."""
    index = config.stages["dedup"].index
    if index is None or not (index / ARTIFACT_FILE).exists():
        return
    if state := store.damage_of(index.resolve(), check_digests=to_be_read):
        raise ConfigError(
            f"dedup.index ({index}) is {state}; rebuild it with the input and settings it was made"
            " from"
        )


@as_night
@contextmanager
def open_run(
    flow: str,
    target: str,
    config: RunConfig,
    overrides: Sequence[str],
    make: MakeArtifact,
    cluster: AbstractContextManager[Cluster | None] | None = None,
    live: LiveRun | None = None,
) -> Iterator[Run]:
    """Plan a run and keep its record and its tracking in step with how it ends.

    live: what this process has announced of the run; announced here where that is None.
    """
    with nullcontext(live) if live else announced(flow, overrides, config) as live:
        given = config
        with alone_in_chain(given):
            config, link = follow_chain(given)
            store, plan = decide(config, target)
            config.require_fit(plan)
            if any(step.runs for step in plan.steps if step.node.stage == "evaluate"):
                config.evaluate.require_backend()  # not only once hours of training are over
            record = new_record(flow, plan, overrides, link)
            if live.flow_run_id is not None:
                record.process |= {"prefect_flow_run_id": live.flow_run_id}
            record.series = recorded_series(config)
            point = PointOfSweep.of_environment()
            record.sweep = point.sweep_id if point else None
            write_record(store, record)
        live.note_record(record.run_id)
        usual = plain_defaults(RunConfig)
        tracker = make_tracker(config.tracking, config.state, record, given.tracked(), usual)
        record.mlflow_run_id = tracker.run_id
        pruning = Pruning(point, config.sweep)
        run = Run(config, store, plan, record, tracker, make, live, pruning)
        with _kept(run, cluster):
            yield run


@contextmanager
def _kept(run: Run, cluster: AbstractContextManager[Cluster | None] | None) -> Iterator[None]:
    """Write how a run ends, whatever that is."""
    record, tracker = run.record, run.tracker
    outcome = "failed"
    try:
        with cluster or nullcontext() as run.cluster:
            yield
        outcome = "completed"
    except BaseException as error:
        outcome = "interrupted" if isinstance(error, STOPS) else "failed"
        record.error = f"{type(error).__name__}: {error}"
        if reason := run.pruning.reason_of(error):
            outcome, record.error = "pruned", reason
            raise Pruned(reason) from error
        raise
    finally:
        record.outcome, record.finished_at = outcome, now()
        try:
            write_record(run.store, record)
        finally:  # a shared store may be out of reach, which is not MLflow's concern
            tracker.finish(outcome, headline(run.artifacts), run.report, record.error)
        if tracker.run_id != record.mlflow_run_id:
            record.mlflow_run_id = tracker.run_id
            write_record(run.store, record)


def summarize(run: Run) -> dict[str, Any]:
    """The machine-readable end of a run; small, JSON-able, the last line of stdout."""
    return {
        "run_id": run.record.run_id,
        "report": str(run.report) if run.report else None,
        "mlflow_uri": run.tracker.uri,
        "mlflow_run_id": run.tracker.run_id,
        "quarantined": run.quarantined,
        "stages": {
            name: {
                "key": outcome.artifact.key,
                "cached": outcome.cached,
                "elapsed_s": round(outcome.elapsed_s, 3),
                **{
                    k: v
                    for k, v in outcome.artifact.counters.items()
                    if isinstance(v, (int, float))
                },
            }
            for name, outcome in run.outcomes.items()
        },
        **({"changes": run.changes.summary()} if run.changes else {}),
        **headline(run.artifacts),
    }


def ending(summary: Mapping[str, Any]) -> str:
    """How a completed run is said to have ended."""
    return "completed with quarantine" if summary["quarantined"] else "completed"


def describe(run: Run) -> str:
    """The human-readable end of a run."""
    rows = []
    for name, outcome in run.outcomes.items():
        into, out = in_and_out(outcome.artifact)
        how = "cached" if outcome.cached else "run"
        rows.append([name, into, out, f"{outcome.elapsed_s:.1f}", how, outcome.artifact.key])
    # Keys and not paths: the table fits a terminal of 80 columns.
    lines = [
        show_table(
            ("stage", "in", "out", "seconds", "", "key"), rows, spare=("in", "seconds", "out")
        ),
        "",
        *_dropped(run),
        f"store   {run.store.root}/<stage>/<key>",
    ]
    if run.quarantined:
        file = run.artifacts["ingest"].place / "quarantine.jsonl"
        lines.append(
            f"completed with quarantine: {plural(run.quarantined, 'record')} could not be read,"
            f" see {file}"
        )
    if said := earlier_documents(run.artifacts):
        lines.append(said)
    if run.changes:
        lines.append(f"changes {run.changes.line}")
        lines.append(f"        {run.changes.page or run.changes.file}")
    if run.report:
        lines.append(f"report  {run.report}")
    if run.tracker.run_id:
        lines.append(f"mlflow  {run.tracker.describe()}")
    return "\n".join(lines)


def _dropped(run: Run) -> list[str]:
    """A line for each stage that dropped documents, with the reason of most of them."""
    lines = []
    for name, outcome in run.outcomes.items():
        if (dropped := own_drops(outcome.artifact)).total():
            reason, count = dropped.most_common(1)[0]
            lines.append(f"{name:<14}{dropped.total():>9,}   most by {reason} ({count:,})")
    shown = [f"{'dropped' if not i else '':<8}{line}" for i, line in enumerate(lines)]
    if {"quality", "pii"} <= set(run.outcomes) and own_drops(run.artifacts["quality"]).total():
        # Why a later row of the table can be larger than an earlier one.
        shown.append("judges  quality, pii and contamination each read all that ingest kept")
    return shown

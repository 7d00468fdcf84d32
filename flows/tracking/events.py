"""Tells MLflow each event of a journal: one function for each kind.

Sending is repeatable: a run is looked up before it is created again, and every value has the time
of its event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.tracking.curves import PROBES, Curves
from flows.tracking.headline import OBJECTIVE
from flows.tracking.journal import Event, Journal
from flows.tracking.machine import EVERY_S
from flows.tracking.mlflow_log import (
    KEY_TAG,
    PARENT_TAG,
    RUN_TAG,
    SWEEP_TAG,
    MlflowLog,
    milliseconds,
)
from flows.tracking.mlflow_names import numbers, numbers_of_stage, params
from flows.tracking.models import log_model, trained_model
from flows.tracking.speeds import speed_points
from flows.tracking.suite_curves import curve_points
from flows.tracking.views import compare_page, sweep_view
from llm_core.training.metric_log import METRICS_FILE, PROFILE_FOLDER, is_of_run, read_rows
from tasks.runtime.artifact import ARTIFACT_FILE, Artifact, load_artifact, write_json
from tasks.runtime.store import now

STAGES_WITH_TABLES = ("analysis",)
"""Stages whose tables MLflow is given beside their `artifact.json`: small ones with counts by label
and no text."""
DATASETS = ("documents", "shards")
"""Stages whose artifacts are the data sets of a run."""

DIGEST_CHARS = 36
"""Of the digest of a data set, as MLflow takes it."""

ITSELF = ""
"""Among the MLflow runs of a journal, that of the run or sweep itself; others are named after their
stage."""


def tell(log: MlflowLog, journal: Journal, event: Event) -> None:
    """Tell MLflow one event. Raises what the client raises."""
    _TELL[event["kind"]](log, journal, event)


def tell_curves(log: MlflowLog, journal: Journal) -> None:
    """Tell MLflow what stages in progress have measured. Raises what the client raises."""
    for stage, event in journal.open_stages().items():
        if run_id := journal.runs.get(stage):
            curves = _curves(journal, event)
            curves.read(Path(event["folder"]), milliseconds(now()), is_over=False)
            if curves.send(log, run_id):
                journal.keep()


def _begin(log: MlflowLog, journal: Journal, event: Event) -> None:
    # A point has no parent run: the list of runs would fold it away below its sweep.
    tags = dict(event["tags"])
    if event["swept"] is not None:
        judged = event.get("objective", (OBJECTIVE, False))
        view = sweep_view(SWEEP_TAG, str(tags[SWEEP_TAG]), event["swept"], *judged)
        log.add_view(view)
    if event["swept"] is not None and (known := log.find({RUN_TAG: str(event["id"])})):
        # A sweep that is given again continues its run.
        log.reopen(known)
        journal.runs[ITSELF] = known
    run_id = _start(log, journal, ITSELF, event["name"], tags, event["at"])
    log.params(run_id, event["params"])
    for name, text in event["texts"].items():
        log.text(run_id, name, text)


def _started(log: MlflowLog, journal: Journal, event: Event) -> None:
    """A stage began to work: a new run, or that of the try before, which this one resumes."""
    stage, note = event["stage"], log.note_of_try(Path(event["folder"]))
    earlier = json.loads(note.read_text("utf-8"))["run"] if note.exists() else None
    if stage in journal.runs or earlier is None or not log.resume(earlier):
        note.parent.mkdir(exist_ok=True)
        write_json(note, {"run": _start_child(log, journal, event, {})})
        return
    journal.runs[stage] = earlier
    journal.steps[stage] = {kind: log.last_step(earlier, metric) for kind, metric in PROBES.items()}
    itself = str(journal.runs[ITSELF])
    log.tags(
        earlier,
        {PARENT_TAG: itself, RUN_TAG: str(journal.events[0]["id"]), "resumed_at": event["at"]},
    )
    journal.keep()


def _stage(log: MlflowLog, journal: Journal, event: Event) -> None:
    itself, stage = str(journal.runs[ITSELF]), event["stage"]
    tags = {f"stage.{stage}": event["key"]}
    artifact = load_artifact(Path(event["path"]))
    if event["made"]:
        child = journal.runs.get(stage) or _start_child(log, journal, event, {})
        if artifact is not None:
            _tell_artifact(log, journal, child, artifact)
            log.datasets(child, _suites(artifact))
        log.datasets(child, event["parents"])
        log.end(child, "FINISHED", event["at"])
        for started in _events(journal, "started", stage):
            log.note_of_try(Path(started["folder"])).unlink(missing_ok=True)
    elif maker := log.find({KEY_TAG: event["key"]}, "FINISHED"):
        tags[f"reused.{stage}"] = maker
    log.tags(itself, tags)
    if stage in DATASETS and artifact is not None:
        counts = numbers_of_stage(artifact.counters, artifact.metrics)
        known = {"key": event["key"], "path": event["path"], "counts": counts}
        log.datasets(itself, {stage: known})


def _suites(artifact: Artifact) -> dict[str, dict[str, Any]]:
    """The suites that an evaluation has scored, as data sets."""
    return {
        name: {
            "key": suite["digest"][:DIGEST_CHARS],
            "path": str(artifact.path),
            "counts": {"items": suite["items"]},
        }
        for name, suite in artifact.metrics.get("suites", {}).items()
        if artifact.stage == "evaluate"
    }


def _tell_artifact(log: MlflowLog, journal: Journal, run_id: str, artifact: Artifact) -> None:
    finished_at = artifact.record["finished_at"]
    log.metrics(run_id, numbers_of_stage(artifact.counters, artifact.metrics), finished_at)
    if artifact.stage == "bench":
        log.points(run_id, speed_points(artifact.metrics, milliseconds(finished_at)))
    if artifact.stage == "evaluate":
        log.points(run_id, curve_points(artifact.metrics, milliseconds(finished_at)))
    rows = read_rows(artifact.path / METRICS_FILE)
    if rows:
        # `metrics.jsonl` holds each step once and nothing of the clock.
        curves = _curves(journal, {"stage": artifact.stage, "params": artifact.config})
        curves.take(rows, artifact.metrics.get("timing", []), milliseconds(finished_at))
        curves.send(log, run_id)
        log.file(run_id, artifact.path / METRICS_FILE)
    if events := [row for row in rows if is_of_run(row)]:
        log.tags(
            run_id,
            {f"event.{row['event']}": f"step {row['step']}: {row['what']}" for row in events},
        )
    log.file(run_id, artifact.path / ARTIFACT_FILE)
    for table in artifact.files("*.parquet") if artifact.stage in STAGES_WITH_TABLES else ():
        log.file(run_id, table)
    if (artifact.path / PROFILE_FOLDER).exists():
        log.folder(run_id, artifact.path / PROFILE_FOLDER)


def _curves(journal: Journal, event: Event) -> Curves:
    """What MLflow was told of a training, as far as this process knows."""
    stage = event["stage"]
    if stage not in journal.curves:
        num_steps = event["params"].get("train", {}).get("num_steps", 0)
        journal.curves[stage] = Curves(journal.steps.setdefault(stage, {}), num_steps)
    return journal.curves[stage]


def _failure(log: MlflowLog, journal: Journal, event: Event) -> None:
    stage = event["stage"]
    child = journal.runs.get(stage) or _start_child(log, journal, event, {})
    if log.tag(child, RUN_TAG) != str(journal.events[0]["id"]):
        return  # another run has resumed it
    log.tags(child, {"error": event["error"]})
    for started in _events(journal, "started", stage):
        # What it measured until then.
        curves = _curves(journal, started)
        curves.read(Path(started["folder"]), milliseconds(event["at"]), is_over=True)
        curves.send(log, child)
    log.end(child, event["status"], event["at"])


def _events(journal: Journal, kind: str, stage: str) -> list[Event]:
    return [e for e in journal.events if e["kind"] == kind and e["stage"] == stage]


def _machine(log: MlflowLog, journal: Journal, event: Event) -> None:
    if child := journal.runs.get(event["stage"]):
        log.metrics(child, event["values"], event["at"], step=int(event["number"] * EVERY_S))


def _model(log: MlflowLog, journal: Journal, event: Event) -> None:
    """The model that a run made or found, with the numbers it is judged by."""
    model, begin = trained_model(journal), journal.events[0]
    if model is not None and model.folder.is_dir():
        run_id = str(journal.runs[ITSELF])
        log_model(log, run_id, model, event["headline"], begin["max_model_bytes"])


def _end(log: MlflowLog, journal: Journal, event: Event) -> None:
    run_id = str(journal.runs[ITSELF])
    values = event.get("headline", {})
    measured = numbers(values)
    # MLflow compares runs by the first metric that they were given.
    first = {name: value for name, value in measured.items() if name == OBJECTIVE}
    for some in (first, measured):
        log.metrics(run_id, some, event["at"])
    if judge := values.get(f"{OBJECTIVE}_of"):
        log.tags(run_id, {f"{OBJECTIVE}.of": judge})
    if (report := event.get("report")) and Path(report).exists():
        log.file(run_id, Path(report))
    about = {name: event[name] for name in ("error", "outcome") if event.get(name)}
    log.tags(run_id, about)
    begin: Any = journal.events[0]
    if begin["swept"] is not None:
        _end_sweep(log, run_id, begin, event["at"])
    log.end(run_id, event["status"], event["at"])


def _end_sweep(log: MlflowLog, run_id: str, begin: Event, at: str) -> None:
    """A sweep carries the best of its points, so that sweeps can be compared among themselves."""
    sweep = begin["tags"][SWEEP_TAG]
    runs = [run for run in log.runs({SWEEP_TAG: sweep}) if run.info.run_id != run_id]
    name, maximizes = begin.get("objective", (OBJECTIVE, False))
    measured = [run for run in runs if name in run.data.metrics]
    measured.sort(key=lambda run: float(run.data.metrics[name]), reverse=maximizes)
    if measured:
        best = measured[0]
        log.metrics(run_id, {name: best.data.metrics[name]}, at)
        log.tags(run_id, {"best_run": best.info.run_id})
    log.tags(run_id, {"mlflow.note.content": _note_of_sweep(log, runs, measured, name)})


def _note_of_sweep(
    log: MlflowLog, runs: Sequence[Any], measured: Sequence[Any], objective: str
) -> str:
    """What the page of the sweep shows: its points, best first, and where they are compared."""
    ids = [run.info.run_id for run in [*measured, *(run for run in runs if run not in measured)]]
    lines = [f"[Compare the {len(ids)} points]({compare_page(log.experiment_id, ids)})", ""]
    lines += [f"| point | {objective} |", "|---|---|"]
    lines += [
        f"| `{run.info.run_name}` | {run.data.metrics[objective]:.4f} |" for run in measured[:50]
    ]
    return "\n".join(lines)


_TELL = {
    "begin": _begin,
    "started": _started,
    "stage": _stage,
    "failure": _failure,
    "machine": _machine,
    "model": _model,
    "end": _end,
}


def _start(
    log: MlflowLog, journal: Journal, what: str, name: str, tags: Mapping[str, str], at: str
) -> str:
    """The MLflow run of `what`: the known one, or one created by an attempt whose answer was lost,
    or a new one."""
    tags = {**tags, RUN_TAG: str(journal.events[0]["id"])}
    run_id = journal.runs.get(what)
    if run_id is None and what in journal.runs:
        created = [
            run
            for run in log.runs({RUN_TAG: tags[RUN_TAG]})
            if run.data.tags.get("stage", ITSELF) == what
        ]
        run_id = str(created[0].info.run_id) if created else None
    if run_id is None:
        journal.runs[what] = None
        journal.keep()
        run_id = log.start(name, tags, at)
    journal.runs[what] = run_id
    journal.keep()
    return run_id


def _start_child(log: MlflowLog, journal: Journal, event: Event, tags: dict[str, str]) -> str:
    """The MLflow run of a stage, with its settings."""
    stage, key = event["stage"], event["key"]
    tags |= {"stage": stage, KEY_TAG: key, "code.digest": event["code"]}
    tags |= {PARENT_TAG: str(journal.runs[ITSELF])}
    child = _start(log, journal, stage, f"{stage} {key}", tags, event["started_at"])
    log.params(child, params(event["params"]))
    return child

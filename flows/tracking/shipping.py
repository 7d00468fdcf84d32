"""Sends the events of journals to MLflow from a thread of their own, so that a server never delays
a run.

Sending is repeatable: a run is looked up before it is created again, and every value has the time
of its event. A failure costs one warning; the journal stays, and is sent when the server answers
again, at the latest by the next run.
"""

from __future__ import annotations

import contextvars
import threading
from pathlib import Path
from typing import Any

from flows.console import warn
from flows.tracking.journal import Event, Journal
from flows.tracking.mlflow_log import (
    KEY_TAG,
    PARENT_TAG,
    RUN_TAG,
    SWEEP_TAG,
    MlflowLog,
    is_refusal,
    reason_of,
)
from flows.tracking.mlflow_names import numbers, numbers_of_stage
from llm_core.config import ConfigError
from llm_core.training.metric_log import METRICS_FILE, PROFILE_FOLDER, is_of_run, read_rows
from tasks.runtime.artifact import ARTIFACT_FILE, Artifact, ArtifactMismatch, load_artifact
from tasks.runtime.store import now

RETRY_AFTER_S = 15.0
FIRST_WAIT_S = 20.0
"""How long a run waits at its start, so that its page in MLflow is known from then on."""
LAST_WAIT_S = 60.0
"""How long a run waits at its end for a server that is slow."""

STAGES_WITH_TABLES = ("analysis",)
"""Stages whose tables MLflow is given beside their `artifact.json`: small ones with counts by label
and no text."""

UNSENDABLE = (ArtifactMismatch, ConfigError, FileNotFoundError)
"""Faults of the event itself, such as an artifact that is damaged or gone: sending it again cannot
succeed."""

ITSELF = ""
"""Among the MLflow runs of a journal, that of the run or sweep itself; others are named after their
stage."""


class Shipper:
    """Sends the events of a journal as they come, and at the end those that earlier runs left."""

    def __init__(self, log: MlflowLog, journal: Journal) -> None:
        self._log, self._journal = log, journal
        self._wake, self._begun, self._closing = (threading.Event() for _ in range(3))
        self._warned = False
        self.run_id: str | None = None
        self.link = ""
        # The context goes along: it says which flow run a warning belongs to.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name="mlflow", daemon=True
        )

    def start(self) -> None:
        """Start, and wait a little: packages imported by two threads at once can find each other
        half loaded."""
        self._wake.set()
        self._thread.start()
        self._begun.wait(FIRST_WAIT_S)

    def tell(self, event: Event) -> None:
        self._journal.append(event)
        self._wake.set()

    def finish(self) -> None:
        """Send the rest, as far as the server takes it in time."""
        self._closing.set()
        self._wake.set()
        self._thread.join(LAST_WAIT_S)
        if self._thread.is_alive():
            self._warn("is slow")

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            # Looked at before sending: once it is set, the journal has every event.
            closing, failed, ended = self._closing.is_set(), False, False
            try:
                ended = send(self._log, self._journal)
                self._note_run()
                if ended:
                    self._journal.remove()
                    send_left_over(self._log)
            except Exception as error:  # noqa: BLE001 - tracking never costs a run
                failed = True
                self._note_run()
                self._warn(f"does not take this run ({reason_of(error)})")
            self._begun.set()
            if ended:
                return
            if closing:
                self._journal.close()
                return
            if failed:
                self._closing.wait(RETRY_AFTER_S)
                self._wake.set()

    def _note_run(self) -> None:
        if self.run_id is None and (run_id := self._journal.runs.get(ITSELF)):
            self.run_id, self.link = run_id, self._log.link(run_id)

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warn(
                f"MLflow at {self._log.name} {what}; the run continues, and the next one sends what"
                f" is kept in {self._log.unsent}"
            )


def send_left_over(log: MlflowLog) -> None:
    """Send what earlier runs left that died or did not reach the server. Raises what the client
    raises."""
    for journal in Journal.left_over(log.unsent):
        if not journal.events:
            journal.remove()
            continue
        if journal.events[-1]["kind"] != "end":
            journal.append(
                {
                    "kind": "end",
                    "status": "KILLED",
                    "at": now(),
                    "error": "the process of this run has died",
                }
            )
        send(log, journal)
        journal.remove()


def send(log: MlflowLog, journal: Journal) -> bool:
    """Send the events that have not been; whether the last one was the end.

    What the server refuses for good, and what is damaged here, is left out with a warning.
    """
    while journal.num_sent < len(journal.events):
        event = journal.events[journal.num_sent]
        try:
            log.require_listener()
            _SENDERS[event["kind"]](log, journal, event)
        except Exception as error:
            refused = is_refusal(error)
            if not (refused or isinstance(error, UNSENDABLE)) or not journal.runs.get(ITSELF):
                raise
            what = (
                "refuses a part of this run, which is left out"
                if refused
                else "lacks a part of this run"
            )
            warn(f"MLflow at {log.name} {what}: {reason_of(error)}")
        journal.num_sent += 1
        journal.keep()
    # By what has been sent: another event may have come since the last look.
    return journal.num_sent > 0 and journal.events[journal.num_sent - 1]["kind"] == "end"


def _begin(log: MlflowLog, journal: Journal, event: Event) -> None:
    tags = dict(event["tags"])
    if sweep := tags.get(SWEEP_TAG) if event["is_run"] else None:
        # Where the sweep is not known yet, it claims its runs when it ends.
        tags |= {PARENT_TAG: parent} if (parent := log.find({RUN_TAG: sweep})) else {}
    run_id = _start(log, journal, ITSELF, event["name"], tags, event["at"])
    log.params(run_id, event["params"])
    for name, text in event["texts"].items():
        log.text(run_id, name, text)


def _stage(log: MlflowLog, journal: Journal, event: Event) -> None:
    itself, tags = str(journal.runs[ITSELF]), {f"stage.{event['stage']}": event["key"]}
    if event["made"]:
        artifact = load_artifact(Path(event["path"]))
        child = _start_child(log, journal, event, {})
        if artifact is not None:
            _tell_artifact(log, child, artifact)
        log.datasets(child, event["parents"])
        log.end(child, "FINISHED", event["at"])
    elif maker := log.find({KEY_TAG: event["key"]}, "FINISHED"):
        tags[f"reused.{event['stage']}"] = maker
    log.tags(itself, tags)


def _tell_artifact(log: MlflowLog, run_id: str, artifact: Artifact) -> None:
    finished_at = artifact.record["finished_at"]
    log.metrics(run_id, numbers_of_stage(artifact.counters, artifact.metrics), finished_at)
    # `metrics.jsonl` holds each step once and nothing of the clock; how fast it went is named
    # `timing/`.
    rows = read_rows(artifact.path / METRICS_FILE)
    log.series(run_id, rows, finished_at)
    if events := [row for row in rows if is_of_run(row)]:
        log.tags(
            run_id,
            {f"event.{row['event']}": f"step {row['step']}: {row['what']}" for row in events},
        )
    log.series(run_id, artifact.metrics.get("timing", []), finished_at, group="timing")
    log.file(run_id, artifact.path / ARTIFACT_FILE)
    for table in artifact.files("*.parquet") if artifact.stage in STAGES_WITH_TABLES else ():
        log.file(run_id, table)
    if (artifact.path / PROFILE_FOLDER).exists():
        log.folder(run_id, artifact.path / PROFILE_FOLDER)


def _failure(log: MlflowLog, journal: Journal, event: Event) -> None:
    child = _start_child(log, journal, event, {"error": event["error"]})
    log.end(child, event["status"], event["at"])


def _end(log: MlflowLog, journal: Journal, event: Event) -> None:
    run_id = str(journal.runs[ITSELF])
    log.metrics(run_id, numbers(event.get("headline", {})), event["at"])
    if (report := event.get("report")) and Path(report).exists():
        log.file(run_id, Path(report))
    if event.get("error"):
        log.tags(run_id, {"error": event["error"]})
    begin: Any = journal.events[0]
    if not begin["is_run"]:
        _end_sweep(log, run_id, begin["tags"][SWEEP_TAG], event["at"])
    log.end(run_id, event["status"], event["at"])


def _end_sweep(log: MlflowLog, run_id: str, sweep: str, at: str) -> None:
    """A sweep claims its runs, and carries the best of them, so that sweeps can be compared among
    themselves."""
    runs = [run for run in log.runs({SWEEP_TAG: sweep}) if run.info.run_id != run_id]
    for run in runs:
        if run.data.tags.get(PARENT_TAG) != run_id:
            log.tags(run.info.run_id, {PARENT_TAG: run_id})
    measured = [run for run in runs if "val_bpb" in run.data.metrics]
    if measured:
        best = min(measured, key=lambda run: float(run.data.metrics["val_bpb"]))
        log.metrics(run_id, {"val_bpb": best.data.metrics["val_bpb"]}, at)
        log.tags(run_id, {"best_run": best.info.run_id})


_SENDERS = {"begin": _begin, "stage": _stage, "failure": _failure, "end": _end}


def _start(
    log: MlflowLog, journal: Journal, what: str, name: str, tags: dict[str, str], at: str
) -> str:
    """The MLflow run of `what`: the known one, or one created by an attempt whose answer was lost,
    or a new one."""
    tags |= {RUN_TAG: str(journal.events[0]["id"])}
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
    log.params(child, event["params"])
    return child

"""What MLflow is told about a run: the only module that meets MLflow.

One parent per pipeline run with the full configuration and the headline numbers, cached or not; one child per
stage that was executed, with that stage's settings, counters, input artifacts as data sets and its
`artifact.json`. A cached stage is a tag on the parent that names the child which made it. Files are the truth
(`artifact.json`, `metrics.jsonl`); this module reads them when a stage has ended, so nothing here slows a step,
and a tracker that fails costs one warning line, never the run.

Client API with explicit run ids only: the fluent API's active run belongs to a thread, not to a run.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import math
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.console import warn
from flows.records import RunRecord
from llm_core.config import ConfigError
from tasks.artifact import ARTIFACT_FILE, Artifact
from tasks.keys import ROOT
from tasks.stage import StageInterrupted
from tasks.store import Node, now

SWEEP_VARIABLE = "TEXTMILL_SWEEP_RUN_ID"
"""Environment variable that names the MLflow run under which the runs of a sweep are grouped."""

# Server limits of one log_batch call.
_MAX_METRICS, _MAX_PARAMS, _MAX_PARAM_CHARS = 1000, 100, 6000

PARENT_TAG = "mlflow.parentRunId"
KEY_TAG = "store.key"

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",  # the word: MLflow does not take 1 for it
    # Without limits, an unreachable server blocks a client for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""What every process that talks to MLflow needs, where the user has not said otherwise."""


@dataclass(frozen=True)
class TrackingConfig:
    """Whether and where runs are tracked."""

    enabled: bool
    experiment: str
    """MLflow experiment that holds the runs."""
    uri: str | None = None
    """Tracking server or database; MLFLOW_TRACKING_URI where null, else a SQLite file under `state`."""

    def __post_init__(self) -> None:
        if not self.experiment.strip():
            raise ConfigError("experiment (empty) must be a name; set tracking.experiment or tracking.enabled=false")
        if self.uri is not None and "://" not in self.uri:
            raise ConfigError(f"uri ({self.uri}) must be a URI; write sqlite:////absolute/path.db or http://host:port")

    def resolve_uri(self, state: Path) -> str:
        return self.uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(state)


def default_uri(state: Path) -> str:
    return f"sqlite:///{state.resolve() / 'mlflow' / 'mlflow.db'}"


class Tracker:
    """Tells nobody: what a run gets when tracking is off."""

    run_id: str | None = None
    uri: str | None = None

    def stage_done(self, node: Node, artifact: Artifact, parents: Mapping[str, Artifact], made: bool) -> None:
        """A stage gave its artifact: `made` by this run, or found."""

    def stage_failed(self, node: Node, started_at: str, error: BaseException) -> None:
        """A stage raised, or was stopped."""

    def finish(self, outcome: str, headline: Mapping[str, Any], report: Path | None) -> None:
        """The run has ended."""

    def describe(self) -> str:
        """Where a person finds the run."""
        return f"{self.uri} run {self.run_id}"


def make_tracker(config: TrackingConfig, state: Path, record: RunRecord, resolved: Mapping[str, Any]) -> Tracker:
    """The tracker of a run; one that tells nobody where tracking is off or cannot be reached."""
    if not config.enabled:
        return Tracker()
    return MlflowTracker(config, state, record, resolved)


class MlflowTracker(Tracker):
    """Tells MLflow, as long as MLflow answers."""

    def __init__(self, config: TrackingConfig, state: Path, record: RunRecord, resolved: Mapping[str, Any]) -> None:
        self.uri = config.resolve_uri(state)
        self._record = record
        self._log: MlflowLog | None = MlflowLog(self.uri, config.experiment, state)
        self._link = ""

        def begin(log: MlflowLog) -> None:
            sweep = os.environ.get(SWEEP_VARIABLE)
            tags = {
                "textmill.run_id": record.run_id,
                "flow": record.flow,
                "target": record.target,
                "host": str(record.process.get("host")),
                **_git_tags(),
                **({PARENT_TAG: sweep} if sweep else {}),
            }
            self.run_id = log.start(f"{record.flow} {record.run_id}", tags, record.started_at)
            self._link = log.link(self.run_id)
            log.params(self.run_id, flatten(resolved))
            log.text(self.run_id, "config/resolved.yaml", _yaml(resolved))
            log.text(self.run_id, "config/overrides.txt", "\n".join(record.overrides) + "\n")

        self._tell(begin)

    def stage_done(self, node: Node, artifact: Artifact, parents: Mapping[str, Artifact], made: bool) -> None:
        def tell(log: MlflowLog) -> None:
            tags = {f"stage.{node.stage}": node.key}
            if made:
                child = self._start_child(log, node, artifact.record["started_at"])
                log.metrics(child, numbers({**artifact.counters, **artifact.metrics}))
                log.steps(child, artifact)
                log.datasets(child, parents)
                log.file(child, artifact.path / ARTIFACT_FILE)
                log.end(child, "FINISHED", artifact.record["finished_at"])
            elif maker := log.maker_of(node.key):
                tags[f"reused.{node.stage}"] = maker
            log.tags(str(self.run_id), tags)

        self._tell(tell)

    def stage_failed(self, node: Node, started_at: str, error: BaseException) -> None:
        def tell(log: MlflowLog) -> None:
            # Ctrl-C and SIGTERM are no Exceptions, whoever turns them into Python.
            stopped = isinstance(error, StageInterrupted) or not isinstance(error, Exception)
            child = self._start_child(log, node, started_at)
            log.tags(child, {"error": f"{type(error).__name__}: {error}"[:_MAX_PARAM_CHARS]})
            log.end(child, "KILLED" if stopped else "FAILED")

        self._tell(tell)

    def finish(self, outcome: str, headline: Mapping[str, Any], report: Path | None) -> None:
        def tell(log: MlflowLog) -> None:
            run_id = str(self.run_id)
            log.metrics(run_id, numbers(headline))
            if report is not None and report.exists():
                log.file(run_id, report)
            if self._record.error:
                log.tags(run_id, {"error": self._record.error[:_MAX_PARAM_CHARS]})
            log.end(run_id, {"completed": "FINISHED", "interrupted": "KILLED"}.get(outcome, "FAILED"))

        self._tell(tell)

    def describe(self) -> str:
        return self._link

    def _start_child(self, log: MlflowLog, node: Node, started_at: str) -> str:
        tags = {
            "stage": node.stage,
            KEY_TAG: node.key,
            "code.digest": str(node.identity.get("code")),
            "textmill.run_id": self._record.run_id,
            PARENT_TAG: str(self.run_id),
        }
        child = log.start(f"{node.stage} {node.key}", tags, started_at)
        log.params(child, flatten(node.config))
        return child

    def _tell(self, action: Callable[[MlflowLog], None]) -> None:
        """Tell MLflow something; after the first failure say so once and tell it nothing more."""
        if self._log is None:
            return
        try:
            action(self._log)
        except _refusals() as error:
            warn(f"MLflow at {self.uri} does not take this run, it goes on untracked: {_reason(error)}")
            self._log, self.run_id = None, None


class MlflowLog:
    """The few MLflow calls that are needed here, in batches and with explicit run ids. Connects at the first one."""

    def __init__(self, uri: str, experiment: str, state: Path) -> None:
        self.uri = uri
        self._experiment = experiment
        self._directory = state.resolve() / "mlflow"

    @functools.cached_property
    def _client(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        _require_listener(self.uri)
        for noisy in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        from mlflow import MlflowClient

        self._directory.mkdir(parents=True, exist_ok=True)
        with self._alone():
            return MlflowClient(tracking_uri=self.uri)

    @functools.cached_property
    def experiment_id(self) -> str:
        client = self._client
        with self._alone():
            found = client.get_experiment_by_name(self._experiment)
            if found is not None:
                return str(found.experiment_id)
            # A server places artifacts itself; without one they would go below the current directory.
            place = None if urlsplit(self.uri).scheme.startswith("http") else (self._directory / "artifacts").as_uri()
            # Without its kind, the UI opens a run among evaluations of chat applications.
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return str(client.create_experiment(self._experiment, artifact_location=place, tags=tags))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Processes that meet a fresh database together fail in its migrations; one at a time, they do not."""
        with (self._directory / "init.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def start(self, name: str, tags: Mapping[str, str], started_at: str) -> str:
        tags = {**tags, "mlflow.runName": name}
        run = self._client.create_run(self.experiment_id, start_time=_milliseconds(started_at), tags=tags, run_name=name)
        return str(run.info.run_id)

    def end(self, run_id: str, status: str, finished_at: str | None = None) -> None:
        self._client.set_terminated(run_id, status, end_time=_milliseconds(finished_at) if finished_at else None)

    def params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_MAX_PARAM_CHARS]) for name, value in values.items()]
        for batch in _batches(params, _MAX_PARAMS):
            self._client.log_batch(run_id, params=batch)

    def tags(self, run_id: str, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(run_id, tags=[RunTag(name, value) for name, value in values.items()])

    def metrics(self, run_id: str, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        at = int(time.time() * 1000)
        for batch in _batches([Metric(name, value, at, 0) for name, value in values.items()], _MAX_METRICS):
            self._client.log_batch(run_id, metrics=batch)

    def steps(self, run_id: str, artifact: Artifact) -> None:
        """The lines of `metrics.jsonl` as series over steps; the file holds each step once and nothing of the clock."""
        from mlflow.entities import Metric

        file = artifact.path / "metrics.jsonl"
        if not file.exists():
            return
        at = _milliseconds(artifact.record["finished_at"])
        series = []
        for line in file.read_text("utf-8").splitlines():
            values = json.loads(line)
            step = int(values.pop("step"))
            series += [Metric(name, value, at, step) for name, value in numbers(values).items()]
        for batch in _batches(series, _MAX_METRICS):
            self._client.log_batch(run_id, metrics=batch)

    def datasets(self, run_id: str, parents: Mapping[str, Artifact]) -> None:
        """Parent artifacts as data sets: the store key is the digest, the record's place the source."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(stage, parent.key, "local", json.dumps({"uri": parent.path.as_uri()})),
                [InputTag("mlflow.data.context", stage)],
            )
            for stage, parent in parents.items()
        ]
        if inputs:
            self._client.log_inputs(run_id, inputs)

    def text(self, run_id: str, name: str, text: str) -> None:
        self._client.log_text(run_id, text, name)

    def file(self, run_id: str, path: Path) -> None:
        self._client.log_artifact(run_id, str(path))

    def maker_of(self, key: str) -> str | None:
        """The finished run that made the artifact of a key, as far as this server knows."""
        query = f"tags.`{KEY_TAG}` = '{key}' and attributes.status = 'FINISHED'"
        runs = self._client.search_runs([self.experiment_id], query, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def children(self, run_id: str) -> list[Any]:
        return list(self._client.search_runs([self.experiment_id], f"tags.`{PARENT_TAG}` = '{run_id}'"))

    def link(self, run_id: str) -> str:
        if urlsplit(self.uri).scheme.startswith("http"):
            return f"{self.uri.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{run_id}"
        return f"run {run_id} in {self.uri}; `textmill ui` shows it"


@contextlib.contextmanager
def open_sweep(config: TrackingConfig, state: Path, overrides: Sequence[str]) -> Iterator[Callable[[], str]]:
    """Group the runs of a sweep under one MLflow run; yields a function that says where it is.

    The runs find their parent by an environment variable, so launchers that start processes work as well.
    """
    if not config.enabled:
        yield lambda: "not tracked"
        return
    log = MlflowLog(config.resolve_uri(state), config.experiment, state)
    run_id, status = None, "FAILED"
    try:
        run_id = log.start("sweep " + " ".join(overrides), {"overrides": " ".join(overrides)}, now())
        os.environ[SWEEP_VARIABLE] = run_id
    except _refusals() as error:
        warn(f"MLflow at {log.uri} does not take this sweep, it goes on untracked: {_reason(error)}")
    try:
        yield lambda: log.link(run_id) if run_id else "not tracked"
        status = "FINISHED"
    finally:
        os.environ.pop(SWEEP_VARIABLE, None)
        if run_id:
            try:
                _end_sweep(log, run_id, status)
            except _refusals() as error:
                warn(f"MLflow at {log.uri} was not told that the sweep has ended: {_reason(error)}")


def _end_sweep(log: MlflowLog, run_id: str, status: str) -> None:
    """The sweep carries the best of its runs, so that sweeps can be compared among themselves."""
    measured = [run for run in log.children(run_id) if "val_bpb" in run.data.metrics]
    if measured:
        best = min(measured, key=lambda run: run.data.metrics["val_bpb"])
        log.metrics(run_id, {"val_bpb": best.data.metrics["val_bpb"]})
        log.tags(run_id, {"best_run": best.info.run_id})
    log.end(run_id, status)


def _refusals() -> tuple[type[Exception], ...]:
    """What is raised where MLflow cannot be told something: by its client, its database, the network or the disk."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{dotted name: leaf}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        where = f"{prefix}.{name}" if prefix else name
        flat |= flatten(value, where) if isinstance(value, Mapping) else {where: value}
    return flat


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers among nested values, by names that MLflow takes; tables and texts are in `artifact.json`."""
    found = {}
    for name, value in flatten(values).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[re.sub(r"[^\w\-. /]", "_", name.replace(".", "/"))[:250]] = float(value)
    return found


def _require_listener(uri: str) -> None:
    """Raise OSError at once where nothing listens, rather than after the client's retries."""
    parts = urlsplit(uri)
    if parts.scheme.startswith("http") and parts.hostname:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with contextlib.closing(socket.create_connection((parts.hostname, port), timeout=5)):
            pass


def _git_tags() -> dict[str, str]:
    """The commit of this code, where it is a clone."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if shutil.which("git") is None:
        return {}
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    commit, _, dirty = shown.stdout.strip().partition("-")
    return {"git.commit": commit, "git.dirty": str(bool(dirty)).lower()} if commit else {}


def _yaml(values: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))


def _milliseconds(instant: str) -> int:
    return int(datetime.fromisoformat(instant).timestamp() * 1000)


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

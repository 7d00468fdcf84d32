"""What MLflow is told about a run.

One parent per pipeline run with the full configuration and the headline numbers, cached or not; one child per
stage that was executed, with that stage's settings, counters, input artifacts as data sets, its
`artifact.json` and, of analysis, its tables. A cached stage is a tag on the parent that names the child which
made it. Files are the truth (`artifact.json`, `metrics.jsonl`); this module reads them when a stage has ended, so nothing
here slows a step, and a tracker that fails costs one warning line, never the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.console import warn
from flows.mlflow_log import KEY_TAG, PARENT_TAG, MlflowLog, reason_of, refusals
from flows.mlflow_names import MAX_EXPERIMENT_CHARS, numbers, numbers_of_stage
from flows.records import RunRecord
from llm_core.config import ConfigError
from llm_core.metric_log import METRICS_FILE, PROFILE_FOLDER, is_of_run, read_rows
from tasks.artifact import ARTIFACT_FILE, Artifact
from tasks.keys import ROOT
from tasks.stage import StageInterrupted
from tasks.store import Node

SWEEP_VARIABLE = "TEXTMILL_SWEEP_RUN_ID"
"""Environment variable that names the MLflow run under which the runs of a sweep are grouped."""

STAGES_WITH_TABLES = ("analysis",)
"""Stages whose tables MLflow is given beside their `artifact.json`: small ones, of counts by label, without a text."""


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
        if len(self.experiment) > MAX_EXPERIMENT_CHARS:
            shown = f"{self.experiment[:20]}…, {len(self.experiment)} characters"
            raise ConfigError(f"experiment ({shown}) must have at most {MAX_EXPERIMENT_CHARS}; set a shorter tracking.experiment")
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
            log.params(self.run_id, resolved)
            log.text(self.run_id, "config/resolved.yaml", _yaml(resolved))
            log.text(self.run_id, "config/overrides.txt", "\n".join(record.overrides) + "\n")

        self._tell(begin)

    def stage_done(self, node: Node, artifact: Artifact, parents: Mapping[str, Artifact], made: bool) -> None:
        def tell(log: MlflowLog) -> None:
            tags = {f"stage.{node.stage}": node.key}
            if made:
                child = self._start_child(log, node, artifact.record["started_at"])
                log.metrics(child, numbers_of_stage(artifact.counters, artifact.metrics))
                _tell_series(log, child, artifact)
                log.datasets(child, parents)
                log.file(child, artifact.path / ARTIFACT_FILE)
                for table in artifact.files("*.parquet") if node.stage in STAGES_WITH_TABLES else ():
                    log.file(child, table)
                if (artifact.path / PROFILE_FOLDER).exists():
                    log.folder(child, artifact.path / PROFILE_FOLDER)
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
            log.tags(child, {"error": f"{type(error).__name__}: {error}"})
            log.end(child, "KILLED" if stopped else "FAILED")

        self._tell(tell)

    def finish(self, outcome: str, headline: Mapping[str, Any], report: Path | None) -> None:
        def tell(log: MlflowLog) -> None:
            run_id = str(self.run_id)
            log.metrics(run_id, numbers(headline))
            if report is not None and report.exists():
                log.file(run_id, report)
            if self._record.error:
                log.tags(run_id, {"error": self._record.error})
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
        log.params(child, node.config)
        return child

    def _tell(self, action: Callable[[MlflowLog], None]) -> None:
        """Tell MLflow something; after the first failure say so once and tell it nothing more."""
        if self._log is None:
            return
        try:
            action(self._log)
        except refusals() as error:
            warn(f"MLflow at {self.uri} does not take this run, it goes on untracked: {reason_of(error)}")
            self._log, self.run_id = None, None


def _tell_series(log: MlflowLog, run_id: str, artifact: Artifact) -> None:
    """The lines of `metrics.jsonl`, which holds each step once and nothing of the clock, and under `timing/` how fast it went."""
    finished_at = artifact.record["finished_at"]
    rows = read_rows(artifact.path / METRICS_FILE)
    log.series(run_id, rows, finished_at)
    if events := [row for row in rows if is_of_run(row)]:
        log.tags(run_id, {f"event.{row['event']}": f"step {row['step']}: {row['what']}" for row in events})
    log.series(run_id, artifact.metrics.get("timing", []), finished_at, group="timing")


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

"""Tells MLflow about a run.

One parent per pipeline run, with its main settings, all of them in a file, and headline numbers,
cached or not. One child per stage that is executed, from its start on, with that stage's settings,
counters, input artifacts as data sets, its `artifact.json` and, of analysis, its tables. A cached
stage is a tag on the parent that names the child which made it.

Events are written to a journal (`flows.tracking.journal`) and shipped from there
(`flows.tracking.shipping`): nothing here slows a step, and a tracker that fails costs one warning
line, never the run.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.console import warn
from flows.records import RunRecord
from flows.tracking.described import (
    PointOfSweep,
    main_settings,
    name_of_run,
    tags_of_origin,
)
from flows.tracking.headline import OBJECTIVE
from flows.tracking.journal import Journal
from flows.tracking.mlflow_log import SWEEP_TAG, MlflowLog, reason_of
from flows.tracking.mlflow_names import MAX_EXPERIMENT_CHARS
from flows.tracking.shipping import Shipper
from llm_core.config import ConfigError
from llm_core.secrets import mask_secrets, mask_values
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import scratch_dir
from tasks.runtime.stage import StageInterrupted
from tasks.runtime.store import Node, now

_STATUS = {
    "completed": "FINISHED",
    "interrupted": "KILLED",
    "pruned": "KILLED",
    "failed": "FAILED",
}
"""How a run ended, as MLflow calls it."""


@dataclass(frozen=True)
class TrackingConfig:
    """Whether and where runs are tracked."""

    enabled: bool = True
    """Track runs in MLflow."""
    experiment: str = "textmill"
    """MLflow experiment that holds the runs."""
    uri: str | None = None
    """Tracking server or database. Null: MLFLOW_TRACKING_URI, or a SQLite file under `state`."""

    max_model_bytes: int = 2_000_000_000
    """Largest model that is copied to MLflow; of larger ones it records the place in the store."""

    def __post_init__(self) -> None:
        if self.max_model_bytes < 0:
            raise ConfigError(
                f"max_model_bytes ({self.max_model_bytes}) must not be negative; 0 copies none"
            )
        if not self.experiment.strip():
            raise ConfigError(
                "experiment (empty) must be a name; set tracking.experiment or"
                " tracking.enabled=false"
            )
        if len(self.experiment) > MAX_EXPERIMENT_CHARS:
            shown = f"{self.experiment[:20]}…, {len(self.experiment)} characters"
            raise ConfigError(
                f"experiment ({shown}) must have at most {MAX_EXPERIMENT_CHARS}; set a shorter"
                " tracking.experiment"
            )
        if self.uri is not None and "://" not in self.uri:
            shown = mask_secrets(self.uri.rpartition("@")[2])  # what is before it may be a password
            raise ConfigError(
                f"uri ({shown}) must be a URI; write sqlite:////absolute/path.db or"
                " http://host:port"
            )

    def resolve_uri(self, state: Path) -> str:
        return self.uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(state)


def default_uri(state: Path) -> str:
    return f"sqlite:///{state.resolve() / 'mlflow' / 'mlflow.db'}"


class Tracker:
    """Writes what happens to a run or sweep to a journal, from which MLflow is told as long as it
    answers. Does nothing where tracking is off. Nothing here raises."""

    def __init__(self, config: TrackingConfig, state: Path, run_id: str) -> None:
        self._log = MlflowLog(config.resolve_uri(state), config.experiment, state)
        self.uri = self._log.name if config.enabled else None
        self._id, self._max_model_bytes = run_id, config.max_model_bytes
        self._shipper: Shipper | None = None

    def begin(
        self,
        name: str,
        tags: Mapping[str, str],
        started_at: str,
        params: Mapping[str, Any],
        texts: Mapping[str, str],
        swept: Sequence[str] | None = None,
        objective: tuple[str, bool] = (OBJECTIVE, False),
    ) -> None:
        """A run has begun, or a sweep, which other runs belong to. params: as MLflow takes them.
        swept: the settings that a sweep varies; None: a run. objective: of a sweep, and whether
        more of it is better."""
        if self.uri is None:
            return
        try:
            self._shipper = Shipper(self._log, Journal.create(self._log.unsent, self._id))
        except OSError as error:
            warn(
                f"{self._log.unsent} cannot be written ({reason_of(error)}); the run continues"
                " untracked"
            )
        self._tell(
            kind="begin",
            id=self._id,
            name=name,
            tags=tags,
            at=started_at,
            params=params,
            texts=texts,
            swept=swept,
            objective=objective,
            max_model_bytes=self._max_model_bytes,
            process=f"{os.getpid()} on {platform.node()}",
        )
        if self._shipper is not None:
            self._shipper.start()

    @property
    def run_id(self) -> str | None:
        """The run in MLflow, as soon as it is known."""
        return self._shipper.run_id if self._shipper else None

    def stage_started(self, node: Node, out_dir: Path) -> None:
        """A stage works in `out_dir`, and nobody else makes its artifact."""
        if self._shipper is not None:
            folder = str(scratch_dir(out_dir))
            self._tell(**_stage_event("started", node), started_at=now(), at=now(), folder=folder)

    def stage_done(
        self, node: Node, artifact: Artifact, parents: Mapping[str, Artifact], made: bool
    ) -> None:
        """A stage gave its artifact: `made` by this run, or found."""
        self._tell(
            **_stage_event("stage", node),
            started_at=artifact.record["started_at"],
            at=artifact.record["finished_at"],
            path=str(artifact.place),
            parents={
                stage: {"key": parent.key, "path": str(parent.place)}
                for stage, parent in parents.items()
            },
            made=made,
        )

    def stage_failed(self, node: Node, started_at: str, error: BaseException) -> None:
        """A stage raised, or was stopped."""
        # Ctrl-C and SIGTERM are not Exceptions, whoever turns them into Python.
        stopped = isinstance(error, StageInterrupted) or not isinstance(error, Exception)
        self._tell(
            **_stage_event("failure", node),
            status="KILLED" if stopped else "FAILED",
            error=f"{type(error).__name__}: {error}",
            started_at=started_at,
            at=now(),
        )

    def finish(
        self,
        outcome: str,
        headline: Mapping[str, Any] | None = None,
        report: Path | None = None,
        error: str | None = None,
    ) -> None:
        """The run or sweep has ended: completed, failed, interrupted or pruned."""
        if headline:
            self._tell(kind="model", headline=headline, at=now())
        self._tell(
            kind="end",
            status=_STATUS[outcome],
            outcome=outcome,
            at=now(),
            headline=headline or {},
            report=str(report) if report else None,
            error=error,
        )
        if self._shipper is not None:
            self._shipper.finish()

    def describe(self) -> str:
        """Where a person finds the run; empty where it is not tracked."""
        return self._shipper.link if self._shipper else ""

    def _tell(self, **event: Any) -> None:
        if self._shipper is None:
            return
        try:
            self._shipper.tell(event)
        except OSError as error:  # a full disk
            warn(
                f"{self._log.unsent} cannot be written ({reason_of(error)}); MLflow is not told how"
                " this run ends"
            )
            self._shipper = None


def make_tracker(
    config: TrackingConfig,
    state: Path,
    record: RunRecord,
    resolved: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> Tracker:
    """The tracker of a run that has begun. resolved, defaults: all settings, and what they are
    where nobody sets them."""
    tracker = Tracker(config, state, record.run_id)
    if not config.enabled:
        return tracker
    point = PointOfSweep.of_environment()
    tags = {
        "flow": record.flow,
        "target": record.target,
        "host": str(record.process.get("host")),
        **tags_of_origin(record.flow),
        **({SWEEP_TAG: point.sweep_id, "swept": point.name} if point else {}),
    }
    texts = {
        "config/resolved.yaml": _yaml(mask_values(resolved)),
        "config/overrides.txt": "\n".join(map(mask_secrets, record.overrides)) + "\n",
    }
    name = point.name if point else name_of_run(record.flow, record.run_id, record.overrides)
    settings = main_settings(resolved, defaults, point)
    tracker.begin(name, tags, record.started_at, settings, texts)
    return tracker


def _stage_event(kind: str, node: Node) -> dict[str, Any]:
    code = str(node.identity.get("code"))
    return {"kind": kind, "stage": node.stage, "key": node.key, "code": code, "params": node.config}


def _yaml(values: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))

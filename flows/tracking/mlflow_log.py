"""Writes to MLflow: the few calls that are needed, in batches and with explicit run ids.

Client API only: the fluent API's active run belongs to a thread, not to a run. What is told
is in `flows.tracking.runs`, what happens where MLflow does not answer in `flows.tracking.shipping`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from flows.services.access import private_file
from flows.tracking.journal import unsent_dir
from flows.tracking.mlflow_names import MAX_NAME_CHARS, MAX_TEXT_CHARS, cut
from flows.tracking.views import EXPERIMENT_TAGS, KIND, runs_view, view_page
from llm_core.locks import open_lock
from llm_core.printing import printable
from llm_core.secrets import mask_secrets

# Server limits of one log_batch call; of its bytes, half of what is allowed.
MAX_METRICS, MAX_PARAMS, MAX_BATCH_BYTES = 1000, 100, 500_000

PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
"""Where servers listen whose address names no port; by kind, without the driver."""

PARENT_TAG = "mlflow.parentRunId"
RUN_TAG, SWEEP_TAG = "textmill.run_id", "textmill.sweep_id"
"""Our own ids: by them a run is found again whose creation was not confirmed, and a sweep by its
runs."""
KEY_TAG = "store.key"

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",  # the word: MLflow does not take 1 for it
    # Without limits, an unreachable server blocks a client for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""What every process that talks to MLflow needs, where the user has not said otherwise."""


class Point(NamedTuple):
    """One value of a series, in the order of MLflow's `Metric`."""

    name: str
    value: float
    at_ms: int
    step: int


class MlflowLog:
    """The few MLflow calls that are needed here, in batches and with explicit run ids. Connects at
    the first one."""

    def __init__(self, uri: str, experiment: str, state: Path) -> None:
        self.uri = uri
        self.name = mask_secrets(uri)
        """The address as it may be shown."""
        self.unsent = unsent_dir(state, uri, experiment)
        self.experiment = experiment
        self._directory = state.resolve() / "mlflow"

    @functools.cached_property
    def client(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.require_listener()
        for noisy in ("alembic", "mlflow.store.db.utils", "mlflow.tracking", "mlflow.pyfunc"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        from mlflow import MlflowClient

        database = self._directory / "mlflow.db"
        self._directory.mkdir(parents=True, exist_ok=True)
        if self.uri == f"sqlite:///{database}":
            private_file(database)
        with self._alone():
            return MlflowClient(tracking_uri=self.uri)

    @functools.cached_property
    def experiment_id(self) -> str:
        client = self.client
        with self._alone():
            found = client.get_experiment_by_name(self.experiment)
            # A server places artifacts itself; without one they would go below the current
            # directory.
            place = (
                None
                if urlsplit(self.uri).scheme.startswith("http")
                else (self._directory / "artifacts").as_uri()
            )
            tags = EXPERIMENT_TAGS | runs_view()
            if found is None:
                return str(
                    client.create_experiment(self.experiment, artifact_location=place, tags=tags)
                )
            self.tag_experiment(found, tags)
            return str(found.experiment_id)

    def tag_experiment(self, found: Any, tags: Mapping[str, str]) -> None:
        """Give an experiment tags that it does not have yet; those of its users stay."""
        for name in tags.keys() - found.tags.keys():
            self.client.set_experiment_tag(found.experiment_id, name, tags[name])

    def add_view(self, view: Mapping[str, str]) -> None:
        """Give the experiment a view of `flows.tracking.views`."""
        for name, value in view.items():
            self.client.set_experiment_tag(self.experiment_id, name, value)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Processes that meet a fresh database together fail in its migrations; one at a time, they
        do not."""
        with open_lock(self._directory / "init.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def note_of_try(self, folder: Path) -> Path:
        """Where it is noted which run a stage that works in a folder has, for whoever resumes it.

        Not in that folder, which is removed by another thread.
        """
        name = hashlib.blake2b(f"{self.unsent.name} {folder}".encode(), digest_size=8).hexdigest()
        return self._directory / "resumable" / f"{name}.json"

    def tag(self, run_id: str, name: str) -> str | None:
        return self.client.get_run(run_id).data.tags.get(name)  # type: ignore[no-any-return]

    def require_listener(self) -> None:
        """Raise OSError at once where nothing listens, rather than after the client's retries."""
        parts = urlsplit(self.uri)
        usual = PORTS.get(parts.scheme.partition("+")[0])
        if usual and parts.hostname:
            port = parts.port or usual
            with contextlib.closing(socket.create_connection((parts.hostname, port), timeout=5)):
                pass

    def start(self, name: str, tags: Mapping[str, str], started_at: str) -> str:
        name = cut(name, MAX_NAME_CHARS)
        tags = {key: cut(value, MAX_TEXT_CHARS) for key, value in tags.items()} | {
            "mlflow.runName": name
        }
        run = self.client.create_run(
            self.experiment_id, start_time=milliseconds(started_at), tags=tags, run_name=name
        )
        return str(run.info.run_id)

    def resume(self, run_id: str) -> bool:
        """Let a run that was begun earlier be in progress again; False where it is not there."""
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_run(run_id)
        except MlflowException as error:
            if is_refusal(error):
                return False
            raise
        if found.info.lifecycle_stage != "active" or found.info.status == "FINISHED":
            return False
        self.reopen(run_id)
        return True

    def reopen(self, run_id: str) -> None:
        self.client.update_run(run_id, status="RUNNING")

    def last_step(self, run_id: str, metric: str) -> int:
        """The last step at which a run has a metric; -1 without any."""
        history = self.client.get_metric_history(run_id, metric)
        return max((point.step for point in history), default=-1)

    def end(self, run_id: str, status: str, finished_at: str) -> None:
        self.client.set_terminated(run_id, status, end_time=milliseconds(finished_at))

    def params(self, run_id: str, values: Mapping[str, str]) -> None:
        """Parameters, by names and with texts that `flows.tracking.mlflow_names` made."""
        from mlflow.entities import Param

        for batch in _batches([Param(*item) for item in values.items()], MAX_PARAMS):
            self.client.log_batch(run_id, params=batch)

    def tags(self, run_id: str, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(
            run_id,
            tags=[RunTag(name, cut(value, MAX_TEXT_CHARS)) for name, value in values.items()],
        )

    def metrics(self, run_id: str, values: Mapping[str, float], at: str, step: int = 0) -> None:
        from mlflow.entities import Metric

        instant = milliseconds(at)
        for batch in _batches(
            [Metric(name, value, instant, step) for name, value in values.items()], MAX_METRICS
        ):
            self.client.log_batch(run_id, metrics=batch)

    def points(self, run_id: str, points: Sequence[Point]) -> None:
        """Values at steps, each with its time."""
        from mlflow.entities import Metric

        for batch in _batches([Metric(*point) for point in points], MAX_METRICS):
            self.client.log_batch(run_id, metrics=batch)

    def datasets(self, run_id: str, artifacts: Mapping[str, Mapping[str, Any]]) -> None:
        """Artifacts {stage: {key, path, counts}} as data sets: the store key is the digest, the
        record's place the source."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(
                    stage,
                    one["key"],
                    "local",
                    json.dumps({"uri": Path(one["path"]).as_uri()}),
                    profile=json.dumps(one.get("counts", {})),
                ),
                [InputTag("mlflow.data.context", stage)],
            )
            for stage, one in artifacts.items()
        ]
        if inputs:
            self.client.log_inputs(run_id, inputs)

    def text(self, run_id: str, name: str, text: str) -> None:
        self.client.log_text(run_id, printable(text), name)

    def file(self, run_id: str, path: Path) -> None:
        self.client.log_artifact(run_id, str(path))

    def folder(self, run_id: str, path: Path) -> None:
        """All files below a folder, under its name."""
        self.client.log_artifacts(run_id, str(path), path.name)

    def runs(self, tags: Mapping[str, str]) -> list[Any]:
        """The runs that have these tags, newest first."""
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        return list(self.client.search_runs([self.experiment_id], query))

    def find(self, tags: Mapping[str, str], status: str | None = None) -> str | None:
        """The newest run that has these tags, as far as this server knows."""
        found = [run for run in self.runs(tags) if status in (None, run.info.status)]
        return str(found[0].info.run_id) if found else None

    def runs_page(self, address: str) -> str:
        """Where the UI at an address lists the runs of this experiment."""
        return view_page(address, self.experiment_id)

    def link(self, run_id: str, view: str | None = None) -> str:
        """Where a person finds a run, or the view of a sweep."""
        if urlsplit(self.uri).scheme.startswith("http"):
            if view is not None:
                return view_page(self.name, self.experiment_id, view)
            return f"{self.name.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{run_id}{KIND}"
        return f"run {run_id} in {self.name}; `textmill ui` shows it"


def is_refusal(error: BaseException) -> bool:
    """Whether the server answers, and will not take this however often it is told."""
    from mlflow.exceptions import MlflowException

    for_good = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST")
    return isinstance(error, MlflowException) and error.error_code in for_good


def reason_of(error: BaseException) -> str:
    """One line, without secrets, that names what is missing where a driver is."""
    said = (str(error).splitlines() or [""])[0][:200]
    if isinstance(error, ImportError):
        said += "; install the driver of this database"
    return mask_secrets(said) or type(error).__name__


def milliseconds(instant: str) -> int:
    return int(datetime.fromisoformat(instant).timestamp() * 1000)


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """`items` in calls that the server takes: not too many at once, and not too many bytes of
    JSON."""
    batch: list[Any] = []
    num_bytes = 0
    for item in items:
        weight = len(json.dumps(dict(item)))  # entities of MLflow iterate over their fields
        if batch and (len(batch) == size or num_bytes + weight > MAX_BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(item)
        num_bytes += weight
    if batch:
        yield batch

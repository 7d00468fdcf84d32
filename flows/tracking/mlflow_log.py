"""Writes to MLflow: the few calls that are needed, in batches and with explicit run ids.

Client API only: the fluent API's active run belongs to a thread, not to a run. This is the only
module that meets MLflow; what is told, and what happens where MLflow does not answer, is in
`flows.tracking.runs` and `flows.tracking.shipping`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.services.access import private_file
from flows.tracking.journal import unsent_dir
from flows.tracking.mlflow_names import MAX_NAME_CHARS, MAX_TEXT_CHARS, cut, numbers, params
from llm_core.locks import open_lock
from llm_core.printing import printable
from llm_core.secrets import mask_secrets

# Server limits of one log_batch call; of its bytes, half of what is allowed.
MAX_METRICS, MAX_PARAMS, MAX_BATCH_BYTES = 1000, 100, 500_000

PARENT_TAG = "mlflow.parentRunId"
RUN_TAG, SWEEP_TAG = "textmill.run_id", "textmill.sweep_id"
"""Our own ids: by them a run is found again whose creation was not confirmed, and a sweep by its
runs."""
KEY_TAG = "store.key"
VIEW = "?workflowType=machine_learning"
"""Until it is told, MLflow 3.17 shows traces of chat applications, which we have none of, whatever
the experiment is of."""

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",  # the word: MLflow does not take 1 for it
    # Without limits, an unreachable server blocks a client for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""What every process that talks to MLflow needs, where the user has not said otherwise."""


class MlflowLog:
    """The few MLflow calls that are needed here, in batches and with explicit run ids. Connects at
    the first one."""

    def __init__(self, uri: str, experiment: str, state: Path) -> None:
        self.uri = uri
        self.name = mask_secrets(uri)
        """The address as it may be shown."""
        self.unsent = unsent_dir(state, uri, experiment)
        self._experiment = experiment
        self._directory = state.resolve() / "mlflow"

    @functools.cached_property
    def _client(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.require_listener()
        for noisy in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
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
        client = self._client
        with self._alone():
            found = client.get_experiment_by_name(self._experiment)
            if found is not None:
                return str(found.experiment_id)
            # A server places artifacts itself; without one they would go below the current
            # directory.
            place = (
                None
                if urlsplit(self.uri).scheme.startswith("http")
                else (self._directory / "artifacts").as_uri()
            )
            # Without its kind, the UI opens a run among evaluations of chat applications.
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return str(
                client.create_experiment(self._experiment, artifact_location=place, tags=tags)
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Processes that meet a fresh database together fail in its migrations; one at a time, they
        do not."""
        with open_lock(self._directory / "init.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def require_listener(self) -> None:
        """Raise OSError at once where nothing listens, rather than after the client's retries."""
        parts = urlsplit(self.uri)
        if parts.scheme.startswith("http") and parts.hostname:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            with contextlib.closing(socket.create_connection((parts.hostname, port), timeout=5)):
                pass

    def start(self, name: str, tags: Mapping[str, str], started_at: str) -> str:
        name = cut(name, MAX_NAME_CHARS)
        tags = {key: cut(value, MAX_TEXT_CHARS) for key, value in tags.items()} | {
            "mlflow.runName": name
        }
        run = self._client.create_run(
            self.experiment_id, start_time=_milliseconds(started_at), tags=tags, run_name=name
        )
        return str(run.info.run_id)

    def end(self, run_id: str, status: str, finished_at: str) -> None:
        self._client.set_terminated(run_id, status, end_time=_milliseconds(finished_at))

    def params(self, run_id: str, values: Mapping[str, Any]) -> None:
        """The leaves of a configuration, as parameters with dotted names."""
        from mlflow.entities import Param

        for batch in _batches([Param(*item) for item in params(values).items()], MAX_PARAMS):
            self._client.log_batch(run_id, params=batch)

    def tags(self, run_id: str, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(
            run_id,
            tags=[RunTag(name, cut(value, MAX_TEXT_CHARS)) for name, value in values.items()],
        )

    def metrics(self, run_id: str, values: Mapping[str, float], at: str) -> None:
        from mlflow.entities import Metric

        instant = _milliseconds(at)
        for batch in _batches(
            [Metric(name, value, instant, 0) for name, value in values.items()], MAX_METRICS
        ):
            self._client.log_batch(run_id, metrics=batch)

    def series(
        self, run_id: str, rows: Sequence[Mapping[str, Any]], at: str, group: str = ""
    ) -> None:
        """Numbers of rows that have a `step`, as series over steps, named below `group`; at: the
        moment that all are given."""
        from mlflow.entities import Metric

        instant = _milliseconds(at)
        series = []
        for row in rows:
            values = {name: value for name, value in row.items() if name != "step"}
            named = numbers({group: values} if group else values)
            series += [Metric(name, value, instant, row["step"]) for name, value in named.items()]
        for batch in _batches(series, MAX_METRICS):
            self._client.log_batch(run_id, metrics=batch)

    def datasets(self, run_id: str, parents: Mapping[str, Mapping[str, str]]) -> None:
        """Parent artifacts {stage: {key, path}} as data sets: the store key is the digest, the
        record's place the source."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(
                    stage,
                    parent["key"],
                    "local",
                    json.dumps({"uri": Path(parent["path"]).as_uri()}),
                ),
                [InputTag("mlflow.data.context", stage)],
            )
            for stage, parent in parents.items()
        ]
        if inputs:
            self._client.log_inputs(run_id, inputs)

    def text(self, run_id: str, name: str, text: str) -> None:
        self._client.log_text(run_id, printable(text), name)

    def file(self, run_id: str, path: Path) -> None:
        self._client.log_artifact(run_id, str(path))

    def folder(self, run_id: str, path: Path) -> None:
        """All files below a folder, under its name."""
        self._client.log_artifacts(run_id, str(path), path.name)

    def runs(self, tags: Mapping[str, str]) -> list[Any]:
        """The runs that have these tags, newest first."""
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        return list(self._client.search_runs([self.experiment_id], query))

    def find(self, tags: Mapping[str, str], status: str | None = None) -> str | None:
        """The newest run that has these tags, as far as this server knows."""
        found = [run for run in self.runs(tags) if status in (None, run.info.status)]
        return str(found[0].info.run_id) if found else None

    def runs_page(self, address: str) -> str:
        """Where the UI at an address lists the runs of this experiment."""
        return f"{address.rstrip('/')}/#/experiments/{self.experiment_id}/runs{VIEW}"

    def link(self, run_id: str) -> str:
        if urlsplit(self.uri).scheme.startswith("http"):
            return f"{self.name.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{run_id}{VIEW}"
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


def _milliseconds(instant: str) -> int:
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

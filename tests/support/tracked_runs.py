"""The runs of one MLflow experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Tracked:
    """The runs of one experiment."""

    def __init__(self, uri: str, experiment: str) -> None:
        from mlflow import MlflowClient

        if uri.startswith("sqlite:"):
            Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(tracking_uri=uri)
        self.experiment = experiment

    def runs(self) -> list[Any]:
        found = self.client.get_experiment_by_name(self.experiment)
        return (
            list(
                self.client.search_runs(
                    [found.experiment_id], order_by=["attributes.start_time ASC"]
                )
            )
            if found
            else []
        )

    def parents(self) -> list[Any]:
        return [run for run in self.runs() if "stage" not in run.data.tags]

    def children(self, parent: Any) -> dict[str, Any]:
        return {
            run.data.tags["stage"]: run
            for run in self.runs()
            if "stage" in run.data.tags
            and run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        }

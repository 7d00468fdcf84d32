"""Gives the MLflow UI the views that its run list opens with: columns, filter and order.

Without one it shows names and times. A view is a tag of the experiment, as the page's own "Views"
makes them; a link names it by its key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from flows.tracking.headline import OBJECTIVE

KIND = "?workflowType=machine_learning"
"""Until it is told, MLflow 3.17 shows traces of chat applications, which we have none of, whatever
the experiment is of."""
RUNS_VIEW = "textmill"
_TAG = "mlflow.sharedViewState."
_METRICS = (OBJECTIVE, "val_loss")
"""The page orders columns by name and shows few at once: others would hide the objective."""

EXPERIMENT_TAGS = {
    # Without its kind, the UI opens a run among evaluations of chat applications.
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.experiment.primaryMetric.name": OBJECTIVE,
    "mlflow.experiment.primaryMetric.greaterIsBetter": "false",
}


def runs_view() -> dict[str, str]:
    """The tag of the view of all runs, newest first: their names and headline numbers."""
    # Ordered by when they started, points of earlier versions are folded away below their sweeps.
    return _view(RUNS_VIEW, "tags.`flow` != ''", (), "attributes.end_time", ascending=False)


def sweep_view(
    sweep_tag: str,
    sweep_id: str,
    swept: Sequence[str],
    objective: str = OBJECTIVE,
    maximizes: bool = False,
) -> dict[str, str]:
    """The tag of the view of one sweep: its points, best first, with what was swept."""
    chosen = f"tags.`{sweep_tag}` = '{sweep_id}' and tags.`flow` != ''"
    shown = [f"params.`{name}`" for name in swept]
    shown += [f"metrics.`{objective}`"] * (objective not in _METRICS)
    return _view(sweep_id, chosen, shown, f"metrics.`{objective}`", ascending=not maximizes)


def _view(
    key: str, chosen: str, columns: Sequence[str], order: str, ascending: bool
) -> dict[str, str]:
    columns = [*columns, *(f"metrics.`{name}`" for name in _METRICS)]
    state = {
        "selectedColumns": columns,
        "searchFilter": chosen,
        "orderByKey": order,
        "orderByAsc": ascending,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
    }
    return {f"{_TAG}{key}": json.dumps(state)}


def view_page(address: str, experiment_id: str, key: str = RUNS_VIEW) -> str:
    """Where the UI at an address shows a view."""
    place = f"{address.rstrip('/')}/#/experiments/{experiment_id}/runs{KIND}"
    return f"{place}&viewStateShareKey={quote(key)}"


def compare_page(experiment_id: str, run_ids: Sequence[str], address: str = "") -> str:
    """Where the UI compares runs."""
    runs, experiments = (quote(json.dumps(ids)) for ids in (list(run_ids), [experiment_id]))
    return f"{address.rstrip('/')}/#/compare-runs?runs={runs}&experiments={experiments}"

"""Cancels all late scheduled runs but one: after three missed nights, one refresh runs.

A run reads its input when it begins, so one that begins after the time of another does that one's
work too. Runs of a deployment with equal parameters are compared; what a person submitted is never
cancelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from flows.services.prefect_api import ACTIVE, PrefectApi, is_ours
from tasks.runtime.keys import canonical_json

LATE_S = 60.0
"""Time a scheduled run has to begin before it counts as late."""


def cancel_superseded(api: PrefectApi) -> Iterator[str]:
    """Cancel late scheduled runs whose work a newer one does; a line for each. Raises
    Unreachable."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    late = (datetime.now(UTC) - timedelta(seconds=LATE_S)).isoformat()
    waiting = {"expected_start_time": {"before_": late}}
    for run in [*api.flow_runs(("SCHEDULED",), **waiting), *api.flow_runs(ACTIVE)]:
        if run["auto_scheduled"] and run["deployment_id"] and is_ours(run):
            groups[run["deployment_id"], canonical_json(run["parameters"])].append(run)
    for runs in groups.values():
        for run in superseded(runs):
            api.set_state("flow_runs", run["id"], "CANCELLED", reason(run), "Superseded")
            yield f"{run['name']}: {reason(run)}"


def superseded(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of scheduled runs that are late or active, all with the same work, those that need not
    run."""

    def due(run: dict[str, Any]) -> datetime:
        return datetime.fromisoformat(run["expected_start_time"])

    def begins(run: dict[str, Any]) -> datetime:
        return datetime.fromisoformat(run["start_time"]) if run["start_time"] else due(run)

    newest = max(map(begins, runs))
    waiting = [run for run in runs if run["state_type"] == "SCHEDULED" and due(run) < newest]
    # A run that waits for its retry has begun: it is one that failed, and not a late one.
    return [run for run in waiting if not run["run_count"]]


def reason(run: dict[str, Any]) -> str:
    return (
        f"due at {run['expected_start_time'][:16]} and not begun: a later run of this schedule"
        " reads the same input and more"
    )

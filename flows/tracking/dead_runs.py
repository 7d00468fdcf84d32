"""Ends the MLflow runs of processes that have died, in a process of its own:
`python -m flows.tracking.dead_runs STATE EXPERIMENT [URI]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows.tracking.mlflow_log import MlflowLog
from flows.tracking.runs import TrackingConfig
from flows.tracking.shipping import send_left_over


def end_dead_runs(state: Path, experiment: str, uri: str | None = None) -> int:
    """Tell MLflow what dead runs have left unsent, and that they failed; how many there were.
    Raises what its client raises."""
    config = TrackingConfig(True, experiment, uri)
    return send_left_over(MlflowLog(config.resolve_uri(state), experiment, state))


if __name__ == "__main__":
    end_dead_runs(Path(sys.argv[1]), *sys.argv[2:4])

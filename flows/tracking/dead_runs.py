"""Ends the MLflow runs of processes that have died, in a process of its own:
`python -m flows.tracking.dead_runs STATE EXPERIMENT [URI]`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from flows.console import warn
from flows.tracking.mlflow_log import MlflowLog, reason_of
from flows.tracking.runs import TrackingConfig
from flows.tracking.shipping import RETRY_AFTER_S, send_left_over

RETRIES = 20
"""Further attempts while MLflow is busy or starting; after them the next run reports."""


def end_dead_runs(state: Path, experiment: str, uri: str | None = None) -> int:
    """Tell MLflow what dead runs have left unsent, and that they failed; how many there were.
    Raises what its client raises."""
    config = TrackingConfig(True, experiment, uri)
    return send_left_over(MlflowLog(config.resolve_uri(state), experiment, state))


def main(state: Path, experiment: str, uri: str | None = None) -> None:
    for retries_left in reversed(range(RETRIES + 1)):
        try:
            end_dead_runs(state, experiment, uri)
            return
        except Exception as error:
            if not retries_left:
                raise
            warn(f"MLflow does not yet accept how dead runs ended ({reason_of(error)})")
            time.sleep(RETRY_AFTER_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])

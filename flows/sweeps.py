"""Which run of a sweep was best? MLflow groups the runs of `-m` under one run of their own, which carries the best number."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flows.console import warn
from flows.mlflow_log import MlflowLog, reason_of, refusals
from flows.tracking import SWEEP_VARIABLE, TrackingConfig
from tasks.store import now


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
    except refusals() as error:
        warn(f"MLflow at {log.uri} does not take this sweep, it goes on untracked: {reason_of(error)}")
    try:
        yield lambda: log.link(run_id) if run_id else "not tracked"
        status = "FINISHED"
    finally:
        os.environ.pop(SWEEP_VARIABLE, None)
        if run_id:
            try:
                _end_sweep(log, run_id, status)
            except refusals() as error:
                warn(f"MLflow at {log.uri} was not told that the sweep has ended: {reason_of(error)}")


def _end_sweep(log: MlflowLog, run_id: str, status: str) -> None:
    """The sweep carries the best of its runs, so that sweeps can be compared among themselves."""
    measured = [run for run in log.children(run_id) if "val_bpb" in run.data.metrics]
    if measured:
        best = min(measured, key=lambda run: run.data.metrics["val_bpb"])
        log.metrics(run_id, {"val_bpb": best.data.metrics["val_bpb"]})
        log.tags(run_id, {"best_run": best.info.run_id})
    log.end(run_id, status)

"""MLflow shows a search as one run, whatever happened to its processes, and says which points were
pruned."""

from __future__ import annotations

from typing import Any

import pytest

from flows.stops import Terminated
from flows.tracking.mlflow_log import SWEEP_TAG
from tests.flows.conftest import RunCli
from tests.support import stand_ins
from tests.support.tracked_runs import Tracked


def test_a_search_that_resumes_continues_its_run(
    tracked: Tracked,
    overrides: list[str],
    trainings: list[float],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = stand_ins.train

    def stopped(*arguments: Any) -> Any:
        if len(trainings) == 1:
            trainings.append(0.0)
            raise Terminated("stopped by signal 15")
        return train(*arguments)

    monkeypatch.setattr(stand_ins, "train", stopped)
    words = ("train", "-m", "optim.lr=interval(1e-3,1e-2)", "sweep.sampler=random")
    more = ("sweep.num_trials=3", "train.grace_s=0.001", "sweep.direction=maximize", *overrides)
    assert run_cli(*words, *more, tracking="local")["code"] == 143
    (sweep,) = (run for run in tracked.parents() if "flow" not in run.data.tags)
    assert sweep.info.status == "KILLED"
    done = run_cli(*words, *more, tracking="local")
    assert done["code"] == 0, done["err"]
    (again,) = (run for run in tracked.parents() if "flow" not in run.data.tags)
    assert again.info.run_id == sweep.info.run_id and again.info.status == "FINISHED"
    points = [run for run in tracked.parents() if "flow" in run.data.tags]
    assert {run.data.tags[SWEEP_TAG] for run in points} == {sweep.data.tags[SWEEP_TAG]}
    best = max(points, key=lambda run: run.data.metrics.get("val_bpb", 0.0))
    assert again.data.tags["best_run"] == best.info.run_id
    assert [run.info.status for run in points] == ["FINISHED", "KILLED", "FINISHED", "FINISHED"]


def test_a_pruned_point_keeps_its_metrics(
    tracked: Tracked, overrides: list[str], trainings: list[float], run_cli: RunCli
) -> None:
    rates = "optim.lr=3e-3,2e-3,4e-3,1e-1"
    words = ("train", "-m", rates, "train.grace_s=2", "sweep.pruner=median", *overrides)
    result = run_cli(*words, tracking="local")
    assert "1 pruned" in result["err"] and len(trainings) == 4
    (pruned,) = (run for run in tracked.parents() if run.data.tags.get("outcome") == "pruned")
    assert pruned.info.status == "KILLED" and pruned.info.run_name == "optim.lr=0.1"
    assert pruned.data.tags["error"].startswith("pruned at step 15 of")
    train = tracked.children(pruned)["train"]
    history = tracked.client.get_metric_history(train.info.run_id, "val_bpb")
    assert [point.step for point in history] == [15, 30, 45]

"""The points of a sweep can be told apart and compared where MLflow shows them."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from flows.tracking.described import describe_points, main_settings, name_of_run, name_of_sweep
from flows.tracking.headline import headline
from flows.tracking.views import runs_view, sweep_view
from tests.flows.conftest import RunCli
from tests.support.tracked_runs import Tracked

SWEEP = ("run", "-m", "tokenizer.vocab_size=300,400", "optim.lr=0.001,0.002", "tokenizer.seed=7")


def test_a_point_has_what_was_swept_and_nothing_that_only_follows_from_it() -> None:
    points = [["model=tiny", "optim.lr=1e-3", "a=1"], ["model=small", "optim.lr=2e-3", "a=1"]]
    resolved: list[dict[str, Any]] = [
        {"model": {"dim": 64}, "optim": {"lr": 0.001}, "a": 1},
        {"model": {"dim": 128}, "optim": {"lr": 0.002}, "a": 1},
    ]
    one, two = describe_points("s", points, resolved)
    assert (one.name, two.name) == ("model=tiny optim.lr=1e-3", "model=small optim.lr=2e-3")
    assert name_of_sweep("train", [one, two]) == "train sweep model=tiny,small optim.lr=1e-3,2e-3"
    settings = [main_settings(r, {"a": 0}, p) for r, p in zip(resolved, (one, two), strict=True)]
    assert settings[0] == {"model": "tiny", "optim.lr": "0.001", "a": "1"}
    assert settings[1] == {"model": "small", "optim.lr": "0.002", "a": "1"}


def test_a_run_is_named_after_what_changes_its_results() -> None:
    overrides = ["run=demo", "store=/x", "tracking.uri=http://a:b@c", "++optim.lr=2", "force=[a]"]
    assert name_of_run("pipeline", "2026-1", overrides) == "pipeline run=demo optim.lr=2"
    assert name_of_run("pipeline", "2026-1", ["store=/x"]) == "pipeline 2026-1"


def test_the_objective_comes_first_and_says_whose_it_is() -> None:
    class Made:
        counters = MappingProxyType({"kept": 5})

        def __init__(self, **metrics: Any) -> None:
            self.metrics = metrics

    train: Any = Made(val_bpb=2.0, final_val_loss=3.0)
    evaluate: Any = Made(val_bpb={"value": 1.5, "low": 1.0})
    numbers = headline({"train": train})
    assert next(iter(numbers)) == "val_bpb" and numbers["val_bpb"] == 2.0
    assert numbers["val_bpb_of"] == "train" and numbers["val_loss"] == 3.0
    numbers = headline({"train": train, "evaluate": evaluate})
    assert numbers["val_bpb"] == 1.5 and numbers["val_bpb_of"] == "evaluate"
    assert headline({})["val_bpb"] is None and headline({})["val_bpb_of"] is None


def test_views_are_what_the_page_reads() -> None:
    for view in (runs_view(), sweep_view("textmill.sweep_id", "s", ["optim.lr"])):
        ((name, value),) = view.items()
        assert name.startswith("mlflow.sharedViewState.") and len(value) < 5000
        assert "metrics.`val_bpb`" in json.loads(value)["selectedColumns"]


@pytest.mark.usefixtures("stand_in_stages")
def test_points_of_a_sweep_carry_headline_numbers_names_origin_and_data(
    tracked: Tracked, overrides: list[str], run_cli: RunCli
) -> None:
    result = run_cli(*SWEEP, *overrides, tracking="local")
    assert result["code"] == 0, result["err"]
    (sweep,) = [run for run in tracked.parents() if "flow" not in run.data.tags]
    points = [run for run in tracked.parents() if "flow" in run.data.tags]
    assert sweep.info.run_name == "run sweep tokenizer.vocab_size=300,400 optim.lr=0.001,0.002"
    names = [f"tokenizer.vocab_size={v} optim.lr={lr}" for v in (300, 400) for lr in (0.001, 0.002)]
    assert [run.info.run_name for run in points] == names
    assert [run.data.tags["swept"] for run in points] == names
    differing = {
        name for name in points[0].data.params if len({p.data.params[name] for p in points}) > 1
    }
    assert differing == {"tokenizer.vocab_size", "optim.lr"} and len(points[0].data.params) < 40
    for run in points:
        assert next(iter(run.data.metrics)) == "val_bpb", "compared by the first metric"
        assert run.data.metrics["val_bpb"] == 1.4 and run.data.tags["val_bpb.of"] == "evaluate"
        assert run.data.metrics["decode_tok_s"] == 123.0 and "train_loss" in run.data.metrics
        assert run.data.tags["mlflow.source.name"] == "textmill pipeline"
        assert run.data.tags["mlflow.user"] and len(run.data.tags["mlflow.source.git.commit"]) == 40
        inputs = {entry.dataset.name for entry in run.inputs.dataset_inputs}
        assert inputs == {"documents", "shards"}
        assert "mlflow.parentRunId" not in run.data.tags, "folded away in the list of runs"
    experiment = tracked.client.get_experiment_by_name(tracked.experiment)
    assert f"mlflow.sharedViewState.{sweep.data.tags['textmill.sweep_id']}" in experiment.tags
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "val_bpb"
    assert all(run.info.run_id in sweep.data.tags["mlflow.note.content"] for run in points)

"""MLflow knows of a run its parent, children, links and statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.compose import compose
from flows.tracking.mlflow_log import MlflowLog
from flows.tracking.mlflow_names import numbers, params
from flows.tracking.runs import default_uri
from tasks.runtime.graph import STAGES
from tests.flows.conftest import RunCli
from tests.support.tracked_runs import Tracked


@pytest.mark.usefixtures("stand_in_stages")
def test_run_has_one_parent_and_a_child_for_each_stage_it_executed(
    tracked: Tracked, overrides: list[str], run_cli: RunCli
) -> None:
    summary = run_cli("run", *overrides, tracking="local")["summary"]
    (parent,) = tracked.parents()
    kind = tracked.client.get_experiment(parent.info.experiment_id).tags["mlflow.experimentKind"]
    assert kind == "custom_model_development", "the UI shows training runs, not chats"
    assert parent.info.run_id == summary["mlflow_run_id"] and parent.info.status == "FINISHED"
    assert parent.data.params["tokenizer.vocab_size"] == "4096" and parent.data.params["model.dim"]
    assert parent.data.metrics["val_bpb"] == 1.4 and parent.data.metrics["decode_tok_s"] == 123.0
    files = {file.path for file in tracked.client.list_artifacts(parent.info.run_id)}
    assert files == {"config", "report.html"}
    assert {f.path for f in tracked.client.list_artifacts(parent.info.run_id, "config")} == {
        "config/overrides.txt",
        "config/resolved.yaml",
    }

    children = tracked.children(parent)
    assert list(STAGES) == [name for name in STAGES if name in children] and len(children) == len(
        STAGES
    )
    assert {child.info.status for child in children.values()} == {"FINISHED"}
    train = children["train"]
    assert "model.dim" in train.data.params and "tokenizer.vocab_size" not in train.data.params
    history = tracked.client.get_metric_history(train.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == [(1, 3.0), (2, 1.5), (3, 1.0)]
    history = tracked.client.get_metric_history(train.info.run_id, "val_loss")
    assert [(m.step, m.value) for m in history] == [(3, 1.25)]
    history = tracked.client.get_metric_history(train.info.run_id, "timing/tokens_per_s")
    assert [(m.step, m.value) for m in history] == [(2, 100.0), (3, 120.0)]
    assert train.data.tags["event.damaged_checkpoint"] == "step 2: kept as x.damaged"
    inputs = {entry.dataset.name: entry.dataset.digest for entry in train.inputs.dataset_inputs}
    assert inputs == {name: summary["stages"][name]["key"] for name in ("tokenizer", "shards")}
    evaluate = children["evaluate"]
    inputs = {entry.dataset.name: entry.dataset.digest for entry in evaluate.inputs.dataset_inputs}
    assert inputs["cloze"] == "d" * 36
    names = ("acc", "acc_low", "acc_high")
    assert [evaluate.data.metrics[f"eval/cloze/{name}"] for name in names] == [0.5, 0.4, 0.6]
    history = tracked.client.get_metric_history(evaluate.info.run_id, "curve/cloze/acc")
    assert [(m.step, m.value) for m in history] == [(4096, 0.25), (8192, 0.5)]
    history = tracked.client.get_metric_history(evaluate.info.run_id, "curve/cloze/acc_low")
    assert [(m.step, m.value) for m in history] == [(8192, 0.4)]
    assert children["ingest"].data.metrics["dropped/EMPTY"] == 1
    assert [f.path for f in tracked.client.list_artifacts(train.info.run_id)] == [
        "artifact.json",
        "metrics.jsonl",
        "profile",
    ]
    assert [f.path for f in tracked.client.list_artifacts(train.info.run_id, "profile")] == [
        "profile/rank-0.md"
    ]
    given = {
        name: [f.path for f in tracked.client.list_artifacts(children[name].info.run_id)]
        for name in ("analysis", "quality")
    }
    assert given == {
        "analysis": ["artifact.json", "scale.parquet"],
        "quality": ["artifact.json"],
    }, "tables, but none of documents"


@pytest.mark.usefixtures("stand_in_stages")
def test_cached_stage_is_a_link_to_the_run_that_made_it(
    tracked: Tracked, overrides: list[str], run_cli: RunCli
) -> None:
    run_cli("run", *overrides, tracking="local")
    run_cli("run", *overrides, tracking="local")
    first, second = tracked.parents()
    makers = tracked.children(first)
    assert tracked.children(second) == {}
    for name in STAGES:
        assert second.data.tags[f"reused.{name}"] == makers[name].info.run_id
    assert second.data.metrics["val_bpb"] == first.data.metrics["val_bpb"], (
        "headline numbers are there, cached or not"
    )
    assert second.data.params == first.data.params


@pytest.mark.usefixtures("stand_in_stages")
@pytest.mark.parametrize(
    ("trouble", "status"), [("failure", "FAILED"), ("ctrl-c", "KILLED"), ("interrupted", "KILLED")]
)
def test_status_says_how_a_run_ended(
    trouble: str,
    status: str,
    tracked: Tracked,
    overrides: list[str],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN_TROUBLE", f"quality:{trouble}")
    run_cli("run", *overrides, tracking="local")
    (parent,) = tracked.parents()
    children = tracked.children(parent)
    assert parent.info.status == status == children["quality"].info.status
    assert children["ingest"].info.status == "FINISHED" and "dedup" not in children
    assert parent.data.tags["error"]


@pytest.mark.usefixtures("stand_in_stages")
def test_a_sweep_and_its_points_share_an_id_and_none_is_folded_below_another(
    tracked: Tracked, overrides: list[str], run_cli: RunCli
) -> None:
    result = run_cli("refresh", "-m", "tokenizer.vocab_size=300,400", *overrides, tracking="local")
    assert result["code"] == 0, result["err"]
    parents = tracked.parents()
    (sweep,) = [run for run in parents if "flow" not in run.data.tags]
    points = [run for run in parents if "flow" in run.data.tags]
    assert sweep.info.status == "FINISHED" and len(points) == 2
    assert len({run.data.tags["textmill.sweep_id"] for run in parents}) == 1
    assert not any("mlflow.parentRunId" in run.data.tags for run in parents)
    assert {run.data.params["tokenizer.vocab_size"] for run in points} == {"300", "400"}


def test_configured_server_wins_over_environment_and_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = compose().tracking
    assert config.resolve_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert config.resolve_uri(tmp_path) == "http://127.0.0.1:5000"
    assert (
        compose(["tracking.uri=http://127.0.0.1:6000"]).tracking.resolve_uri(tmp_path)
        == "http://127.0.0.1:6000"
    )


def test_the_page_of_runs_is_that_of_trainings_in_the_experiment(tmp_path: Path) -> None:
    log = MlflowLog(default_uri(tmp_path), "textmill", tmp_path)
    page = log.runs_page("http://127.0.0.1:5000/")
    assert (
        page == f"http://127.0.0.1:5000/#/experiments/{log.experiment_id}/runs"
        "?workflowType=machine_learning&viewStateShareKey=textmill"
    )


def test_mlflow_takes_any_names_and_texts(database: str, tracked: Tracked, tmp_path: Path) -> None:
    log = MlflowLog(database, tracked.experiment, tmp_path)
    run_id = log.start(
        "n" * 3000, {"overrides": "o" * 9000, "empty": ""}, "2026-01-01T00:00:00+00:00"
    )
    configured = {f"{i}.🎓@{'k' * 300}": "🎓" * 6000 for i in range(150)}
    log.params(run_id, params(configured))
    log.metrics(
        run_id,
        numbers({"web.a": 1, "web": {"a": 2}, "../x": 3, "deb:golang-1.19-src": 4}),
        "2026-01-01T00:00:00+00:00",
    )
    log.tags(run_id, {"error": "e" * 9000})
    (run,) = tracked.runs()
    assert len(run.data.params) == 150
    assert (
        run.data.metrics["web.a"] == 1
        and run.data.metrics["web/a"] == 2
        and run.data.metrics["deb:golang-1.19-src"] == 4
    )
    assert len(run.data.metrics) == 4

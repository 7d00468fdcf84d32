"""Hydra's launchers run points at once without collisions, and a search that is killed resumes: in
real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.tracking.mlflow_log import SWEEP_TAG
from flows.tracking.runs import default_uri
from tests.support.tracked_runs import Tracked
from tests.support.whole_runs import kill_tree, make_corpus, run, started, summary, wait_for

POINTS = ("-m", "train.seed=1,2,3", "only=ingest", "num_workers=1")


def test_points_at_once_make_a_stage_once_and_are_each_tracked(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in")
    at_once = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "tracking=local")
    done = run("refresh", corpus, tmp_path, *POINTS, *at_once)
    assert "sweep: 3 runs, 0 failed" in done.stderr, done.stderr
    assert sum(path.name[0] != "." for path in (tmp_path / "store/ingest").iterdir()) == 1
    records = [json.loads(path.read_text()) for path in (tmp_path / "store/.runs").glob("*.json")]
    assert {record["outcome"] for record in records} == {"completed"} and len(records) == 3
    tracked = Tracked(default_uri(tmp_path / "state"), "textmill")
    (sweep,) = (run for run in tracked.parents() if "flow" not in run.data.tags)
    points = [run for run in tracked.parents() if "flow" in run.data.tags]
    assert sorted(run.info.run_name for run in points) == [f"train.seed={n}" for n in (1, 2, 3)]
    for one in (sweep, *points):
        assert one.info.status == "FINISHED", one.info.run_name
    assert {run.data.tags[SWEEP_TAG] for run in points} == {sweep.data.tags[SWEEP_TAG]}
    assert {record["mlflow_run_id"] for record in records} == {run.info.run_id for run in points}
    made = [run for run in tracked.runs() if run.data.tags.get("stage") == "ingest"]
    assert len(made) == 1, "two points found what the third one made"


def test_points_run_as_jobs_of_submitit(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in")
    done = run("refresh", corpus, tmp_path, *POINTS, "hydra/launcher=submitit_local")
    last = summary(done)
    assert (last["runs"], last["failed"]) == (3, 0), done.stderr
    points = json.loads(Path(last["results"]).read_text())["points"]
    assert len({point["run_id"] for point in points}) == 3
    logs = [*(tmp_path / "state/sweeps/.submitit").glob("*/*.out")]
    assert len(logs) == 3 and all("ingest" in log.read_text() for log in logs)


def test_a_search_that_is_killed_in_its_second_point_does_not_repeat_the_first(
    tmp_path: Path,
) -> None:
    corpus, records = make_corpus(tmp_path / "in"), tmp_path / "store/.runs"
    search = ("tokenizer.vocab_size=int(interval(290,320))", "sweep.objective=vocab_size")
    words = ("-m", *search, "sweep.sampler=random", "sweep.num_trials=3")
    with started("tokenizer", corpus, tmp_path, *words) as process:
        wait_for(lambda: len([*records.glob("*.json")]) == 2, process)
        kill_tree(process)
    (folder,) = (tmp_path / "state/sweeps").glob("*-*")
    begun = json.loads((folder / "1.json").read_text())
    first = (folder / "0.json").stat().st_mtime_ns
    assert begun == {"code": None}
    done = run("tokenizer", corpus, tmp_path, *words)
    assert "resumed, 1 of 3 runs are done" in done.stderr and "run 1 of 3" not in done.stderr
    assert (folder / "0.json").stat().st_mtime_ns == first
    points = json.loads((folder / "sweep.json").read_text())["points"]
    assert [point["state"] for point in points] == ["completed"] * 3
    ran = [json.loads(path.read_text())["overrides"] for path in records.glob("*.json")]
    for place, point in enumerate(points):
        assert ran.count(point["overrides"]) == 1 + (place == 1), "only the second is run again"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("flow", "experiment", "shortened"),
    [
        ("evaluate", "vocabulary_sweep", ("tokenizer.vocab_size=300,320", "tokenizer=bpe")),
        ("train", "learning_rate_search", ("sweep.num_trials=4",)),
        ("evaluate", "data_quality_ablation", ("train.seed=1",)),
    ],
)
def test_an_experiment_names_its_best_point(
    tmp_path: Path, flow: str, experiment: str, shortened: tuple[str, ...]
) -> None:
    corpus = make_corpus(tmp_path / "in", num_files=6, rows_per_file=40, first_row=250)
    done = run(flow, corpus, tmp_path, "-m", f"experiment={experiment}", *shortened)
    last = summary(done)
    assert last["failed"] == 0 and last["best"]["results"]["val_bpb"] > 0
    assert f"best     run {last['best']['number']}, val_bpb" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_that_falls_behind_saves_and_keeps_its_curve(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in")
    rates = ("-m", "optim=adamw", "optim.lr=1e-3,2e-3,3e-3,1e-9", "sweep.pruner=median")
    longer = ("train.num_steps=1500", "train.validate_every=100", "train.checkpoint_every=500")
    done = run("train", corpus, tmp_path, *rates, *longer, "tracking=local")
    assert "sweep: 4 runs, 0 failed, 1 pruned" in done.stderr, done.stderr
    tracked = Tracked(default_uri(tmp_path / "state"), "textmill")
    (pruned,) = (run for run in tracked.parents() if run.data.tags.get("outcome") == "pruned")
    assert pruned.info.status == "KILLED" and pruned.info.run_name == "optim.lr=1e-09"
    train = tracked.children(pruned)["train"]
    history = tracked.client.get_metric_history(train.info.run_id, "val_bpb")
    assert history and all(point.step % 100 == 0 for point in history)
    (status,) = (tmp_path / "store/.work/train").rglob("run-*/status.json")
    assert json.loads(status.read_text())["outcome"] == "preempted"

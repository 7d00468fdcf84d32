"""A search asks for each point once, whatever happens to its process, and finds what it looks
for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.stops import Terminated
from flows.sweeps.config import SweepConfig
from flows.sweeps.job import Point
from flows.sweeps.points import Dimension, Interval, dimensions
from flows.sweeps.search import Search
from flows.tracking.described import PointOfSweep
from tasks.runtime.artifact import write_json
from tests.flows.conftest import RunCli
from tests.flows.sweeps.conftest import loss_of

SPACE = dimensions(["optim.lr=tag(log,interval(1e-4,1e-1))", "model=tiny,small", "train.seed=7"])
QUICK = "train.grace_s=0.001"
SEARCH = ("train", "-m", "optim.lr=tag(log,interval(1e-4,1e-1))", QUICK, "sweep.sampler=tpe")


def open_search(folder: Path, **config: Any) -> Search:
    folder.mkdir(exist_ok=True)
    chosen = SweepConfig(**{"sampler": "tpe", "num_trials": 6} | config)
    return Search(folder, SPACE, chosen, [], PointOfSweep("s", ""))


def finish(folder: Path, point: Point, **ending: Any) -> None:
    value = loss_of(float(point.about.swept["optim.lr"]))
    write_json(folder / f"{point.number}.json", {"code": 0, "results": {"val_bpb": value}} | ending)


def run(folder: Path, search: Search, limit: int = 100, size: int | None = None) -> list[Point]:
    """Run points until the process dies after `limit` of them."""
    done = []
    for batch in search.batches(size):
        for point in batch:
            done.append(point)
            if len(done) > limit:
                return done
            finish(folder, point)
    return done


def test_a_search_that_was_killed_has_the_points_it_would_have_had(tmp_path: Path) -> None:
    whole = run(tmp_path / "a", open_search(tmp_path / "a"))
    assert [point.number for point in whole] == list(range(6))
    assert len({tuple(point.overrides) for point in whole}) == 6
    begun = run(tmp_path / "b", open_search(tmp_path / "b"), limit=2)
    rest = run(tmp_path / "b", open_search(tmp_path / "b"))
    assert [*begun[:2], *rest] == [Point(p.number, p.overrides, p.about) for p in whole], (
        "the third was begun, and is run again with the same values"
    )
    assert not run(tmp_path / "b", open_search(tmp_path / "b")), "all are there"
    more = run(tmp_path / "b", open_search(tmp_path / "b", num_trials=8))
    assert [point.number for point in more] == [6, 7]


def test_points_of_a_batch_run_together_and_each_once(tmp_path: Path) -> None:
    points = run(tmp_path / "a", open_search(tmp_path / "a"), size=4)
    assert [point.number for point in points] == list(range(6))
    begun = run(tmp_path / "b", open_search(tmp_path / "b"), limit=2, size=4)
    rest = run(tmp_path / "b", open_search(tmp_path / "b"), size=4)
    assert [point.number for point in rest] == [2, 3, 4, 5] and len(begun) == 3


def test_a_point_that_dies_here_is_not_run_again_at_once(tmp_path: Path) -> None:
    search, numbers = open_search(tmp_path / "a", num_trials=2), []
    for (point,) in search.batches(None):
        numbers.append(point.number)
        write_json(tmp_path / "a" / f"{point.number}.json", {"code": None})
    assert numbers == [0, 1]


def test_a_search_stops_where_a_point_was_stopped(tmp_path: Path) -> None:
    search = open_search(tmp_path / "a")
    for (point,) in search.batches(None):
        finish(tmp_path / "a", point, code=75)
    (again, *_) = run(tmp_path / "a", open_search(tmp_path / "a"))
    assert again.number == 0


@given(
    low=st.floats(1e-6, 1e3), factor=st.floats(1.001, 1e6), place=st.floats(0, 1), log=st.booleans()
)
def test_values_in_few_digits_stay_between_the_ends(
    low: float, factor: float, place: float, log: bool
) -> None:
    interval = Interval(low, low * factor, log)
    value = low + place * (interval.high - low)
    assert interval.low <= float(interval.as_text(value)) <= interval.high
    assert float(interval.as_text(value)) == pytest.approx(value, rel=1e-3)


@settings(max_examples=6, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda s: max(s) > 1),
    size=st.none() | st.integers(1, 4),
)
def test_points_listed_are_the_points_run(
    sizes: list[int], size: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from flows.sweeps.points import listed_points

    space = [Dimension(f"k{i}", tuple(f"v{j}" for j in range(n))) for i, n in enumerate(sizes)]
    listed, folder = listed_points(space), tmp_path_factory.mktemp("sweep")
    config = SweepConfig(pruner="median")
    search = Search(folder, space, config, listed, PointOfSweep("s", ""))
    ran = []
    for batch in search.batches(size):
        for point in batch:
            ran.append(point.overrides)
            write_json(folder / f"{point.number}.json", {"code": 0, "results": {"val_bpb": 1.0}})
    assert ran == listed


def test_a_search_finds_the_best_rate_and_says_which_run_it_is(
    trainings: list[float], run_cli: RunCli, folder_of_sweep: Callable[[], Path]
) -> None:
    result = run_cli(*SEARCH, "sweep.num_trials=6")
    assert result["code"] == 0, result["err"]
    assert len(trainings) == 6 and "run 2 of 6: optim.lr=" in result["err"]
    best = result["summary"]["best"]
    assert best["results"]["val_bpb"] == min(map(loss_of, trainings))
    assert best["swept"] == {"optim.lr": str(min(trainings, key=loss_of))}
    assert f"best     run {best['number']}, val_bpb" in result["out"] and best["run_id"]
    written = json.loads((folder_of_sweep() / "sweep.json").read_text())
    assert [float(p["swept"]["optim.lr"]) for p in written["points"]] == trainings
    assert f"textmill compare {written['sweep']}" in result["out"]
    again = run_cli(*SEARCH, "sweep.num_trials=6")
    assert len(trainings) == 6 and "resumed, 6 of 6 runs are done" in again["err"]
    assert again["summary"]["best"] == best
    run_cli(*SEARCH, "sweep.num_trials=7", "optim.weight_decay=0.2")
    assert len(trainings) == 13, "another setting is another search"


def test_the_best_of_a_sweep_is_that_of_its_objective_and_direction(
    trainings: list[float], run_cli: RunCli
) -> None:
    rates = ("train", "-m", "optim.lr=1e-3,3e-3,1e-2", QUICK)
    best = run_cli(*rates)["summary"]["best"]
    assert best["swept"] == {"optim.lr": "0.003"} and best["number"] == 2
    assert run_cli(*rates, "sweep.direction=maximize")["summary"]["best"]["number"] != 2
    result = run_cli(*rates, "sweep.objective=decode_tok_s")
    assert result["code"] == 0 and result["summary"]["best"] is None
    sizes = run_cli("tokenizer", "-m", "tokenizer.seed=1,2", "sweep.objective=vocab_size")
    assert "vocab_size" in sizes["out"] and "best     run 1, vocab_size 300" in sizes["out"]


def test_a_point_that_falls_behind_is_pruned_and_keeps_what_it_measured(
    trainings: list[float], run_cli: RunCli, folder_of_sweep: Callable[[], Path], tmp_path: Path
) -> None:
    rates = "optim.lr=3e-3,2e-3,4e-3,1e-1,3.2e-3"
    result = run_cli("train", "-m", rates, "train.grace_s=2", "sweep.pruner=median")
    assert result["code"] == 0, result["err"]
    assert "sweep: 5 runs, 0 failed, 1 pruned" in result["err"] and len(trainings) == 5
    assert "run 4: pruned at step 15 of" in result["err"]
    points = json.loads((folder_of_sweep() / "sweep.json").read_text())["points"]
    assert [p["state"] for p in points] == [*["completed"] * 3, "pruned", "completed"]
    records = [json.loads(p.read_text()) for p in (tmp_path / "store/.runs").glob("*.json")]
    (pruned,) = (record for record in records if record["outcome"] == "pruned")
    assert pruned["error"].startswith("pruned at step 15")
    # Given again, nothing is run, and the validations are in the study.
    run_cli("train", "-m", rates, "train.grace_s=2", "sweep.pruner=median")
    assert len(trainings) == 5
    import optuna

    study = optuna.load_study(
        study_name="sweep", storage=f"sqlite:///{folder_of_sweep() / 'study.db'}"
    )
    assert study.trials[3].state.name == "PRUNED"
    assert set(study.trials[3].intermediate_values) == {15}
    assert set(study.trials[0].intermediate_values) == {15, 30, 45}


def test_a_sweep_that_is_stopped_in_a_search_resumes(
    trainings: list[float], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support import stand_ins

    train = stand_ins.train

    def stopped(*arguments: Any) -> Any:
        if len(trainings) == 1:
            trainings.append(arguments[-2].optim.lr)
            raise Terminated("stopped by signal 15")
        return train(*arguments)

    monkeypatch.setattr(stand_ins, "train", stopped)
    first = run_cli(*SEARCH, "sweep.num_trials=3")
    assert first["code"] == 143 and len(trainings) == 2
    second = run_cli(*SEARCH, "sweep.num_trials=3")
    assert second["code"] == 0 and "resumed, 1 of 3 runs are done" in second["err"]
    assert trainings[1] == trainings[2] and len(trainings) == 4


def test_what_a_search_cannot_do_is_one_line(stand_in_stages: list[str], run_cli: RunCli) -> None:
    for words, hint in {
        "optim.lr=1e-3,2e-3 sweep.sampler=tpe sweep.objective=decode_tok_s": "use textmill run",
        "optim.lr=1e-3 sweep.sampler=tpe": "settings that vary",
        "optim.lr=1,2 sweep.pruner=median sweep.objective=vocab_size": "that training measures",
        "optim.lr=1,2 sweep.objective=val_bbp": "did you mean val_bpb?",
        "optim.lr=1,2 sweep.num_trials=0": "at least 1",
        "optim.lr=interval(1,2) sweep.pruner=median": "sweep.sampler=tpe",
        "optim.lr=interval(2,1) sweep.sampler=tpe": "is not an interval",
        "optim.lr=interval(-2,1) sweep.sampler=tpe": "lr (-2.0)",
    }.items():
        result = run_cli("train", "-m", *words.split())
        assert result["code"] == 2 and hint in result["err"], (words, result["err"])
        assert result["err"].count("\n") == 1, result["err"]
    assert stand_in_stages == []


@pytest.mark.slow
@pytest.mark.usefixtures("api")
def test_a_flow_run_that_falls_behind_is_pruned(
    trainings: list[float], run_cli: RunCli, tmp_path: Path
) -> None:
    words = (
        "train",
        "-m",
        "optim.lr=3e-3,2e-3,4e-3,1e-1",
        "train.grace_s=3",
        "sweep.pruner=median",
    )
    result = run_cli(*words, orchestrator="prefect")
    assert result["code"] == 0 and "4 runs, 0 failed, 1 pruned" in result["err"], result["err"]
    records = [json.loads(p.read_text()) for p in (tmp_path / "store/.runs").glob("*.json")]
    outcomes = sorted(record["outcome"] for record in records)
    assert outcomes == ["completed"] * 3 + ["pruned"] and len(trainings) == 4

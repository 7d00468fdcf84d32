"""Curves reach MLflow while training goes on: each step once, at the time at which it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.tracking import shipping
from flows.tracking.curves import MAX_POINTS, Curves
from flows.tracking.mlflow_log import Point
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import scratch_dir
from tasks.runtime.stage import StageInterrupted
from tests.flows.conftest import RunCli
from tests.support import stand_ins
from tests.support.growing_rows import BEGAN_S, write
from tests.support.tracked_runs import Tracked

NOW_MS = 9_000_000_000_000


@dataclass
class Server:
    """What a log has sent; `away`: it does not answer."""

    kept: list[Point] = field(default_factory=list)
    away: bool = False

    def require_listener(self) -> None:
        if self.away:
            raise ConnectionError("away")

    def points(self, _: str, points: list[Point]) -> None:
        self.kept.extend(points)

    def of(self, name: str) -> list[tuple[int, int]]:
        return [(point.step, point.at_ms) for point in self.kept if point.name == name]


LIFE = st.lists(
    st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 5)), min_size=1, max_size=6
)


@given(LIFE, st.integers(1, 3))
def test_each_step_is_sent_once_whenever_it_is_looked_and_however_often_training_is_cut(
    tmp_path_factory: pytest.TempPathFactory, life: list[tuple[int, bool, int]], every: int
) -> None:
    folder = tmp_path_factory.mktemp("work")
    server = Server()
    sent: dict[str, int] = {}
    curves, last = Curves(sent, 100), 0
    for steps, away, lost in life:
        back = max(0, last - lost) // every * every if lost else last
        write(folder / "run-a", back + 1, back + steps, every, back)
        last = back + steps
        server.away = away
        curves.read(folder, NOW_MS, is_over=False)
        try:
            curves.send(server, "r")  # type: ignore[arg-type]
        except ConnectionError:
            assert away
    server.away = False
    curves.read(folder, NOW_MS, is_over=True)
    curves.send(server, "r")  # type: ignore[arg-type]
    steps_sent = [step for step, _ in server.of("train_loss")]
    assert steps_sent == sorted(set(steps_sent)), "once, in order"
    assert set(range(1, last + 1)) <= set(steps_sent)
    assert sent.get("train", 0) == max(steps_sent, default=0)


def test_a_step_has_the_time_at_which_it_ended_also_within_an_interval(tmp_path: Path) -> None:
    write(tmp_path / "run-a", 1, 7, every=3)
    server = Server()
    curves = Curves({}, 7)
    curves.read(tmp_path, NOW_MS, is_over=False)
    curves.send(server, "r")  # type: ignore[arg-type]
    times = [(step, at_ms / 1000 - BEGAN_S) for step, at_ms in server.of("train_loss")]
    assert times == [(step, float(step)) for step in range(1, 7)], "step 7 waits for its interval"
    curves.read(tmp_path, NOW_MS, is_over=True)
    curves.send(server, "r")  # type: ignore[arg-type]
    assert [step for step, _ in server.of("train_loss")] == [*range(1, 8)]


def test_a_long_training_is_thinned_but_none_of_its_validations() -> None:
    rows: list[dict[str, Any]] = []
    for step in range(1, 10 * MAX_POINTS + 1):
        rows.append({"step": step, "train_loss": 1.0})
        rows += [{"step": step, "val_loss": 2.0}] if step % 7 == 0 else []
    server = Server()
    curves = Curves({}, 10 * MAX_POINTS)
    curves.take(rows, [], NOW_MS)
    curves.send(server, "r")  # type: ignore[arg-type]
    assert len(server.of("train_loss")) <= MAX_POINTS + 2
    assert len(server.of("val_loss")) == 10 * MAX_POINTS // 7


def trains(*work: Callable[[Path], None]) -> Callable[..., Artifact]:
    """A stage that does the next piece of work at each call."""
    left = list(work)

    def train(*arguments: Any) -> Artifact:
        out_dir = arguments[-3]
        folder = scratch_dir(out_dir) / "run-a"
        left.pop(0)(folder)
        (out_dir / "metrics.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes())
        timing = [json.loads(line) for line in (folder / "timing.jsonl").open()]
        return Artifact(out_dir, "train", {}, {"timing": timing, "final_val_loss": 2.0})

    return train


@pytest.mark.usefixtures("stand_in_stages")
def test_a_curve_is_in_mlflow_while_training_runs(
    tracked: Tracked, overrides: list[str], run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(shipping, "EVERY_S", 0.5)
    seen: list[Any] = []

    def work(folder: Path) -> None:
        write(folder, 1, 4)
        until = time.monotonic() + 60
        while not seen and time.monotonic() < until:
            children = [run for run in tracked.runs() if run.data.tags.get("stage") == "train"]
            shown = children[0].data.metrics if children else {}
            if {"train_loss", "system/cpu_utilization_percentage"} <= shown.keys():
                seen.append(children[0])
            time.sleep(0.1)
        write(folder, 5, 6, keep=4)

    monkeypatch.setattr(stand_ins, "train", trains(work))
    result = run_cli("train", *overrides, tracking="local")
    assert result["code"] == 0, result["err"]
    assert seen and seen[0].info.status == "RUNNING" and seen[0].data.metrics["train_loss"] == 0.25
    train = tracked.children(tracked.parents()[0])["train"]
    history = tracked.client.get_metric_history(train.info.run_id, "train_loss")
    assert [(m.step, m.timestamp / 1000 - BEGAN_S) for m in history] == [
        (step, float(step)) for step in range(1, 7)
    ]
    assert train.info.status == "FINISHED"


@pytest.mark.usefixtures("stand_in_stages")
def test_a_resumed_training_continues_its_run_with_each_step_once(
    tracked: Tracked,
    overrides: list[str],
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def stops(folder: Path) -> None:
        write(folder, 1, 4)
        raise StageInterrupted("train was stopped at step 4; run again to resume")

    def goes_on(folder: Path) -> None:
        write(folder, 3, 6, keep=2)

    monkeypatch.setattr(stand_ins, "train", trains(stops, goes_on))
    assert run_cli("train", *overrides, tracking="local")["code"] == 75
    (stopped,) = [run for run in tracked.runs() if run.data.tags.get("stage") == "train"]
    history = tracked.client.get_metric_history(stopped.info.run_id, "train_loss")
    assert stopped.info.status == "KILLED" and [m.step for m in history] == [1, 2, 3, 4]
    assert run_cli("train", *overrides, tracking="local")["code"] == 0
    (train,) = [run for run in tracked.runs() if run.data.tags.get("stage") == "train"]
    assert train.info.run_id == stopped.info.run_id and train.info.status == "FINISHED"
    assert train.data.tags["mlflow.parentRunId"] == tracked.parents()[1].info.run_id
    history = tracked.client.get_metric_history(train.info.run_id, "train_loss")
    assert [m.step for m in history] == [1, 2, 3, 4, 5, 6]
    assert list((tmp_path / "state/mlflow/resumable").iterdir()) == []

"""`textmill fit-scaling SWEEP` fits a law to the trainings of a sweep."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.records import RunRecord, write_record
from llm_core.planner import scaling_fit
from llm_core.planner.scaling import ScalingLaw
from tasks.runtime.artifact import Artifact
from tasks.runtime.store import Node, Store

TRUE = ScalingLaw(1.5, 30.0, 60.0, 0.3, 0.35)
SIZES, LENGTHS = (20_000, 60_000, 200_000), (100_000, 300_000, 900_000)
SHARDS = f"{1:016x}"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """With a sweep of nine finished trainings that follow a law, on 500,000 tokens."""
    monkeypatch.setattr(scaling_fit.fit_scaling, "__defaults__", (8, 0))
    made = Store(tmp_path / "store")
    publish(made, "shards", SHARDS, {}, {"splits": {"train": {"tokens": 500_000}}})
    for number, (weights, tokens) in enumerate(itertools.product(SIZES, LENGTHS)):
        metrics = {"num_parameters": weights, "final_val_loss": TRUE.loss(weights, tokens)}
        publish(made, "train", f"{number + 10:016x}", {"tokens": tokens}, metrics)
        record(made, number, {"train": f"{number + 10:016x}", "shards": SHARDS})
    return made


def publish(store: Store, stage: str, key: str, counters: Any, metrics: Any) -> None:
    node = Node(stage, key, key, {"stage": stage, "inputs": {}}, {})
    with store.hold(node, print) as out:
        (out / "content").touch()
        store.publish(node, Artifact(out, stage, counters, metrics), 0, 0, "2026-01-01")


def record(store: Store, number: int, stages: dict[str, str]) -> None:
    began = f"2026-01-01T00:00:{number:02d}"
    found = RunRecord(f"r{number}", "train", "train", [], began, stages, {}, "completed")
    write_record(store, dataclasses.replace(found, sweep="sizes"))


def fitted(capsys: pytest.CaptureFixture[str], store: Store, *words: str) -> tuple[int, str, str]:
    code = main(["fit-scaling", *words, f"store={store.root}"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_law_of_a_sweep_and_the_best_model_of_a_budget(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    code, out, err = fitted(capsys, store, "sizes", "--json", "flops=1e12,1e13", f"--html={page}")
    found = json.loads(out)
    assert code == 0
    assert found["exponent"]["value"] == pytest.approx(0.35 / 0.65, abs=1e-3)
    assert found["num_draws"] == 8 and len(found["points"]) == 9
    best = [each["num_weights"]["value"] for each in found["optima"]]
    assert best == pytest.approx([TRUE.best_weights(flops) for flops in (1e12, 1e13)], rel=0.01)
    # 900,000 tokens are more than the shards have.
    assert err.count("1.8 epochs") == 3
    assert "Loss against weights, for equal work" in page.read_text("utf-8")


def test_a_terminal_shows_runs_law_and_optima(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = fitted(capsys, store, "sizes")
    assert code == 0
    for point in itertools.product(SIZES, LENGTHS):
        assert f"{TRUE.loss(*point):.4f}" in out
    assert "L = 1.50" in out and "a = 0.538" in out
    # Budgets without a word: the work of the largest run, and ten and a hundred times as much.
    for factor in (1, 10, 100):
        assert f"{factor * 6 * SIZES[-1] * LENGTHS[-1]:.2e}" in out


def test_runs_that_do_not_compare_are_refused(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    other = f"{2:016x}"
    publish(store, "shards", other, {}, {"splits": {"train": {"tokens": 500_000}}})
    record(store, 50, {"train": f"{10:016x}", "shards": other})
    code, _, err = fitted(capsys, store, "sizes")
    assert code == 2 and "different shards" in err
    record(store, 50, {"shards": SHARDS})
    code, _, err = fitted(capsys, store, "sizes")
    assert code == 2 and "run r50 has no model" in err
    code, _, err = fitted(capsys, store, "r1", "r2")
    assert code == 2 and "found 2" in err
    code, _, err = fitted(capsys, store)
    assert code == 2 and "a scaling law needs 6 runs" in err and "found 0" in err
    code, _, err = fitted(capsys, store, "r1", "r2", "flops=much")
    assert code == 2 and "flops (much)" in err

"""What stages are expected to take, from earlier artifacts that this machine made."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.config import to_plain
from tasks.runtime.artifact import ARTIFACT_FILE, Artifact, write_sealed
from tasks.runtime.estimates import Estimate, _power, _scaled, estimate_stages
from tasks.runtime.plan import Plan, Step
from tasks.runtime.store import Node, Store
from tests.support.engine.small_runs import MODEL, TRAIN

COUNT = iter(range(1, 1000))


def node(stage: str, config: dict[str, Any], **parents: str) -> Node:
    key = f"{next(COUNT):016x}"
    return Node(stage, key, key, {"parents": parents, "config": config}, config)


def made(
    store: Store, of: Node, elapsed_s: float, num_bytes: int, read: int, host: str | None = None
) -> Node:
    with store.hold(of, print) as out:
        (out / "data").write_bytes(b"x" * num_bytes)
        artifact = Artifact(out, of.stage)
        store.publish(of, artifact, elapsed_s, 0.0, "2026-01-01", (), read)
    if host:
        file = store.path(of.stage, of.key) / ARTIFACT_FILE
        record = json.loads(file.read_text("utf-8"))
        del record["record_digest"]
        write_sealed(file, record | {"host": record["host"] | {"name": host}})
    return of


def expected(store: Store, *steps: Step) -> dict[str, Estimate]:
    return estimate_stages(store, Plan(steps[-1].node.stage, steps))


def test_time_and_bytes_are_scaled_by_what_a_stage_reads(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made(store, node("pii", {}), elapsed_s=10.0, num_bytes=500, read=1000)
    ingest = made(store, node("ingest", {}), elapsed_s=1.0, num_bytes=3000, read=0)
    found = expected(
        store, Step(ingest, "cached"), Step(node("pii", {}, ingest=ingest.key), "building")
    )
    assert found == {"pii": Estimate(30.0, 1500.0, 1)}


def test_what_a_stage_will_leave_is_what_the_next_one_reads(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ingest = made(store, node("ingest", {}), 1.0, num_bytes=4000, read=0)
    made(store, node("documents", {}), 2.0, num_bytes=1000, read=2000)
    made(store, node("tokenizer", {}), 5.0, num_bytes=10, read=1000)
    documents = node("documents", {}, ingest=ingest.key)
    found = expected(
        store,
        Step(ingest, "cached"),
        Step(documents, "building"),
        Step(node("tokenizer", {}, documents=documents.key), "after documents"),
    )
    assert found["documents"] == Estimate(4.0, 2000.0, 1)
    assert found["tokenizer"].elapsed_s == 10.0


def test_a_training_is_scaled_by_tokens_and_weights(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def config(num_steps: int, num_layers: int) -> dict[str, Any]:
        model = dataclasses.replace(MODEL, num_layers=num_layers)
        train = dataclasses.replace(TRAIN, num_steps=num_steps)
        return {"model": to_plain(model), "train": to_plain(train)}

    made(store, node("train", config(10, 2)), 8.0, num_bytes=300, read=7)
    found = expected(store, Step(node("train", config(30, 4)), "building"))
    assert found["train"] == Estimate(8.0 * 3 * 2, 600.0, 1)


def test_without_an_earlier_run_here_nothing_is_estimated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made(store, node("bench", {}), 9.0, 10, read=10, host="another")
    assert expected(store, Step(node("bench", {}), "building")) == {"bench": Estimate()}
    assert not expected(store, Step(node("bench", {}), "building", needed=False))


def test_runs_of_the_same_settings_count_before_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for elapsed_s, setting in ((100.0, 1), (2.0, 2), (110.0, 1)):
        made(store, node("bench", {"x": setting}), elapsed_s, 10, read=0)
    same = expected(store, Step(node("bench", {"x": 2}), "building"))["bench"]
    assert same == Estimate(2.0, 10.0, 1)
    others = expected(store, Step(node("bench", {"x": 3}), "building"))["bench"]
    assert others == Estimate(100.0, 10.0, 3)


def test_an_artifact_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made(store, node("bench", {}), 9.0, 10, read=10)
    broken = made(store, node("bench", {}), 1.0, 10, read=10)
    (store.path("bench", broken.key) / ARTIFACT_FILE).write_text("{")
    assert expected(store, Step(node("bench", {}), "building"))["bench"].elapsed_s == 9.0


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e6)), min_size=1, max_size=9))
def test_an_estimate_is_that_of_the_nearest_sizes(runs: list[tuple[float, float]]) -> None:
    scaled = [value / size for size, value in runs]
    assert 0.999 * min(scaled) <= _scaled(runs, 1.0) <= 1.001 * max(scaled)
    far = [(size * 1e4, value) for size, value in runs]
    assert _scaled([*far, *[(1.0, 5.0)] * 3], 1.0) == pytest.approx(5.0)


@given(st.floats(0, 1), st.floats(2.1, 1e6), st.floats(1e-2, 1e4))
def test_how_time_grows_is_read_off_runs_of_different_sizes(
    power: float, spread: float, one_s: float
) -> None:
    runs = [(size, one_s * size**power) for size in (1.0, spread, spread / 1.5)]
    assert _power(runs) == pytest.approx(power, abs=1e-6)
    assert _scaled(runs, 10 * spread, _power(runs)) == pytest.approx(
        one_s * (10 * spread) ** power, rel=1e-4
    )


def test_runs_of_one_size_are_taken_to_grow_as_fast_as_what_is_read() -> None:
    assert _power([(100.0, 3.0), (150.0, 1.0)]) == 1.0 == _power([(None, 3.0)])
    assert _power([(1.0, 9.0), (100.0, 3.0)]) == 0.0, "more was never faster for being more"


def test_the_host_of_a_record_is_this_machine(tmp_path: Path) -> None:
    store = Store(tmp_path)
    there = made(store, node("bench", {}), 9.0, 10, read=10)
    record = json.loads((store.path("bench", there.key) / ARTIFACT_FILE).read_text("utf-8"))
    assert record["host"]["name"] == platform.node() and record["input_bytes"] == 10

"""A training is held against what the planner predicts of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import plan_memory
from llm_core.training import train
from tasks.runtime.artifact import Artifact
from tasks.runtime.keys import key_config
from tasks.training import trainer_process
from tasks.training.planned import STATES, beside_measured, with_prediction, work_of
from tasks.training.stage import resolve, train_model
from tests.support.distributed.cases import layout, layout_name
from tests.support.engine.small_runs import MODEL, TRAIN
from tests.support.engine.staged_training import CONFIG

SMALL = HardwareConfig("a small device", 1e-4, 100, 10, 1, reserve_gb=0)


def test_what_its_hardware_cannot_hold_is_refused_before_a_process_starts(
    parents: tuple[Artifact, Artifact], out_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process.subprocess, "Popen", None)
    with pytest.raises(ConfigError, match=r"a small device has 0.0001 GB.*would fit|smaller model"):
        train_model(*parents, out_dir, dataclasses.replace(CONFIG, hardware=SMALL))


def test_a_run_that_is_too_large_starts_where_that_is_asked_for(
    parents: tuple[Artifact, Artifact], out_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = MemoryConfig(if_too_large="warn")
    made = train_model(*parents, out_dir, dataclasses.replace(CONFIG, hardware=SMALL, memory=asked))
    assert made.metrics["num_steps"] == CONFIG.train.num_steps
    assert "warning: training needs" in capsys.readouterr().err


def test_the_trainer_refuses_what_its_own_gpu_cannot_hold(
    parents: tuple[Artifact, Artifact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = with_prediction(resolve(CONFIG, *parents), HardwareConfig())
    assert run.predicted is not None
    train.run_in(tmp_path / "on a CPU", run)
    monkeypatch.setattr(train, "memory_bytes", lambda device: run.predicted.peak_bytes - 1)
    with pytest.raises(ConfigError, match="training needs .* and cpu has"):
        train.run_in(tmp_path / "on a GPU", run)
    assert not list((tmp_path / "on a GPU").glob("checkpoints/*"))


def test_devices_are_in_no_key() -> None:
    assert key_config(CONFIG) == key_config(dataclasses.replace(CONFIG, hardware=SMALL))


@pytest.mark.parametrize(
    "parallel", [ParallelConfig(), layout(2, "fsdp"), layout(2, "zero1")], ids=layout_name
)
def test_the_bytes_that_a_process_holds_are_those_that_were_predicted(
    parallel: ParallelConfig, parents: tuple[Artifact, Artifact], out_dir: Path
) -> None:
    made = train_model(*parents, out_dir, dataclasses.replace(CONFIG, parallel=parallel))
    plan = made.metrics["plan"]
    assert plan["measured"]["weights_bytes"] > 4 * MODEL.num_parameters() / 3
    assert plan["ratio"] == {f"{part}_bytes": 1.0 for part in STATES}
    assert plan["predicted"] == plan["measured"]


def test_speed_is_compared_where_devices_are_described(
    parents: tuple[Artifact, Artifact], out_dir: Path
) -> None:
    large = dataclasses.replace(SMALL, memory_gb=100.0)
    made = train_model(*parents, out_dir, dataclasses.replace(CONFIG, hardware=large))
    plan = json.loads(json.dumps(made.metrics["plan"], allow_nan=False))
    predicted, measured = plan["predicted"], plan["measured"]
    assert measured["tokens_per_s"] == made.metrics["tokens_per_s"]
    assert measured["step_s"] == pytest.approx(TRAIN.tokens_per_step / measured["tokens_per_s"])
    assert sum(plan["time"].values()) == pytest.approx(predicted["step_s"])
    assert plan["ratio"]["mfu_causal"] == pytest.approx(plan["ratio"]["tokens_per_s"])
    assert "max_memory_bytes" not in measured, "of a CPU it holds more than is predicted"
    (own,) = [each for each in plan["choice"]["layouts"] if each["own"]]
    assert own["step_s"] == pytest.approx(predicted["step_s"])


def test_the_peak_of_a_gpu_is_compared_and_ranks_of_a_pipeline_are_told_apart(
    parents: tuple[Artifact, Artifact],
) -> None:
    run = resolve(CONFIG, *parents)
    run = dataclasses.replace(run, parallel=layout(2, "ddp", pp=2))
    metrics = {"device": "NVIDIA H200", "tokens_per_s": 1e6, "max_memory_bytes": 3_000_000}
    plan = beside_measured(run, SMALL, metrics, {})
    most = plan_memory(work_of(run), SMALL)
    assert plan["ratio"]["max_memory_bytes"] == pytest.approx(3_000_000 / most.allocated)
    assert [each["name"] for each in plan["ranks"]] == ["pipeline rank 0", "pipeline rank 1"]
    totals = [sum(v for v in each.values() if v != each["name"]) for each in plan["ranks"]]
    assert max(totals) == most.total and totals[0] != totals[1]
    assert "weights_bytes" not in plan["measured"], "what nobody measured is not zero"


def test_a_layout_that_the_planner_would_not_list_is_compared_all_the_same(
    parents: tuple[Artifact, Artifact],
) -> None:
    run = resolve(CONFIG, *parents)
    alone = dataclasses.replace(SMALL, devices_per_node=1)
    train_of_two = dataclasses.replace(run.train, global_batch_sequences=1, micro_batch_sequences=1)
    run = dataclasses.replace(run, train=train_of_two, parallel=layout(2, "ddp", tp=2))
    metrics = {"device": "cpu", "tokens_per_s": 1e6}
    plan = beside_measured(run, alone, metrics, {})
    assert plan["choice"]["layouts"] == [] and "finds no layout" in plan["choice"]["refusal"]
    assert plan["predicted"]["step_s"] > 0

"""A calibration finds constants that predict the steps it has seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llm_core.calibration import operations
from llm_core.calibration.calibrate import measure, record
from llm_core.calibration.steps import Step, fit_passes
from llm_core.config import build
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, plan_time
from llm_core.training.config import TrainConfig

WORK = Work(
    ModelConfig(256, 64, 2, 2, 1, 128, 64),
    OptimConfig(lr=1e-3),
    TrainConfig(num_steps=10, global_batch_sequences=4, seq_len=64, micro_batch_sequences=4),
    ParallelConfig(device="cpu"),
)
CPU = torch.device("cpu")


def test_a_record_says_what_was_measured_and_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operations.SQUARE, "cpu", 128)
    watch = operations.Stopwatch(Ranks(0, 1, CPU), 0.01, 1 << 20)
    found = record(measure(WORK, watch, 0.01), {})
    hardware = build(HardwareConfig, found["hardware"])
    assert not hardware.launches_ahead and hardware.launch_ms > 0
    assert hardware.memory_gb > 0 and hardware.links == {}
    assert hardware.tflops_fp32 * hardware.matmul_share == pytest.approx(
        operations.rate_of([operations.Product(**_fields(row)) for row in found["products"]], 2)
        / 1e12
    )
    assert plan_time(WORK, hardware).step_s > 0
    assert [row["seq_len"] for row in found["steps"]] == [64, 32]


def _fields(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "tflops"}


def test_passes_are_those_that_made_the_steps() -> None:
    hardware = HardwareConfig("X", 10, 20, 0.2, 0.1, passes=9.5, launches_ahead=False)
    works = [WORK, replace(WORK, model=replace(WORK.model, num_layers=1))]
    steps = [Step(work, plan_time(work, hardware).step_s) for work in works]
    assert fit_passes(steps, replace(hardware, passes=0.0)) == pytest.approx(9.5)


def test_products_are_weighted_by_how_often_a_model_has_them() -> None:
    block, head = (
        operations.Product(name, 10, 10, 10, elapsed_s)
        for name, elapsed_s in (("down", 1.0), ("head", 3.0))
    )
    assert operations.rate_of([block, head], 3) == pytest.approx(4 * 6000 / (3 * 1.0 + 3.0))

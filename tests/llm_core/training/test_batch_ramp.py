"""A run whose batches grow counts what it learnt from, resumes in the middle, and is planned so."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.data.ramp import BatchSizes
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.cost import speed_at, training_speed
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import Work, plan_time
from llm_core.training.metric_log import read_rows
from llm_core.training.rollback import learnt_sequences
from llm_core.training.run_config import check_run
from llm_core.training.schedule import learning_rate
from llm_core.training.train import run
from tests.support.engine.small_runs import MODEL, TRAIN, result_bytes, run_config, stop_and_resume

RAMP = {"3": 2, "7": 4}


def test_a_run_stopped_in_the_ramp_ends_with_the_bytes_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    config = run_config(tmp_path, train={"num_steps": 10, "batch_ramp": RAMP, "log_every": 2})
    (tmp_path / "whole").mkdir()
    run(config, tmp_path / "whole")
    stopped = stop_and_resume(config, tmp_path / "stopped", 4)
    assert result_bytes(stopped) == result_bytes(tmp_path / "whole")
    rows = [row for row in read_rows(tmp_path / "whole" / "metrics.jsonl") if "train_loss" in row]
    sequences = [2] * 3 + [4] * 4 + [8] * 3
    assert [row["tokens"] for row in rows] == [16 * n for n in itertools.accumulate(sequences)]
    timing = read_rows(tmp_path / "whole" / "timing.jsonl")
    counted = [row["tokens_per_s"] * row["elapsed_s"] / 16 for row in timing]
    # Steps 1–2, 3–4, 5, which is validated, 6, 7–8, 9–10.
    assert counted == pytest.approx([4, 6, 4, 4, 12, 16])


@given(st.data())
@settings(max_examples=60)
def test_batches_that_a_run_has_gone_back_from_do_not_count(data: st.DataObject) -> None:
    sizes = BatchSizes(8, ((5, 2), (11, 4)))
    step, passed, learnt, rollbacks = 0, 0, [0], []
    for _ in range(data.draw(st.integers(1, 40))):
        step += 1
        learnt = [*learnt[:step], learnt[step - 1] + sizes.at(step - 1 + passed)]
        if data.draw(st.booleans()):
            point = data.draw(st.integers(0, step - 1))
            rollbacks.append((step, point))
            step, passed = point, passed + step - point
    for at in range(rollbacks[-1][1] if rollbacks else 0, step + 1):
        assert learnt_sequences(at, sizes, rollbacks) == learnt[at]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_rates_fall_by_tokens(schedule: Any) -> None:
    optim = OptimConfig(1.0, schedule=schedule, warmup_steps=2, decay_frac=1.0)
    ramp = BatchSizes(4, ((10, 2),))
    # Twenty steps of two sequences are ten of four.
    slow = [learning_rate(step, 22, optim, ramp) for step in range(11, 23)]
    plain = [learning_rate(step, 18, optim) for step in range(7, 19)]
    assert slow == pytest.approx(plain, abs=1e-12)
    same = [learning_rate(step, 18, optim, BatchSizes(6)) for step in range(1, 19)]
    assert same == [learning_rate(step, 18, optim) for step in range(1, 19)]


@pytest.mark.parametrize(
    ("ramp", "message"),
    [
        ({"0": 2}, r"batch_ramp \(0\) must be keyed by steps"),
        ({"soon": 2}, r"batch_ramp \(soon\) must be keyed by steps"),
        ({"3": 4, "7": 4}, r"must rise from step to step"),
        ({"3": 8}, r"stay below global_batch_sequences \(8\)"),
        ({"3": 0}, r"must rise"),
    ],
)
def test_a_ramp_that_does_not_rise_is_refused(ramp: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TRAIN, batch_ramp=ramp)


def test_every_size_must_divide_over_processes_and_micro_batches() -> None:
    train = dataclasses.replace(TRAIN, batch_ramp={"3": 3, "5": 6})
    with pytest.raises(ConfigError, match=r"train.batch_ramp \(6\) .* \(2 x 2\); try micro_batch"):
        check_run(MODEL, dataclasses.replace(train, batch_ramp={"5": 6}), ParallelConfig("ddp", 2))
    with pytest.raises(ConfigError, match=r"batch_ramp \(3\) .*=1 for the same.*try 2"):
        check_run(MODEL, train, ParallelConfig())


def test_a_plan_takes_as_long_as_its_phases() -> None:
    work = Work(
        MODEL, OptimConfig(1e-3), dataclasses.replace(TRAIN, batch_ramp=RAMP), ParallelConfig()
    )
    hardware = HardwareConfig("H100", 80, 3350, 989, 67, price_per_hour=2)
    found = training_speed(work, plan_time(work, hardware), hardware)
    elapsed_s = 0.0
    for steps, size in ((3, 2), (4, 4), (5, 8)):
        train = dataclasses.replace(TRAIN, global_batch_sequences=size)
        elapsed_s += steps * plan_time(dataclasses.replace(work, train=train), hardware).step_s
    assert found.cost.device_hours == pytest.approx(elapsed_s / 3600)
    tokens = 16 * (3 * 2 + 4 * 4 + 5 * 8)
    assert work.train.total_tokens == tokens
    assert found.cost.flops == pytest.approx(
        tokens * MODEL.training_flops_per_token(16, causal=True)
    )
    assert speed_at(work, found.tokens_per_s, hardware).cost.days < found.cost.days

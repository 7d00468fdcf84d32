"""Whole runs of each optimizer: they learn, and what is stopped or skipped ends in the same
bytes."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_core.optim.config import GuardConfig, LossScaleConfig
from llm_core.optim.guard import TrainingDiverged
from llm_core.training.metric_log import read_rows
from llm_core.training.train import run
from tests.support.engine.optimized_runs import events, in_folder, make_config
from tests.support.engine.small_optimizers import KINDS
from tests.support.engine.small_runs import OPTIM, result_bytes, signal_when, stop_and_resume

RATES = {"adamw": 3e-3, "lion": 1e-3, "adafactor": 3e-2, "muon": 3e-3}


def losses(workdir: Path) -> list[float]:
    return [
        row["train_loss"] for row in read_rows(workdir / "metrics.jsonl") if "train_loss" in row
    ]


OTHERS = [
    pytest.param(kind, "fp32", "fp32", marks=pytest.mark.slow) for kind in KINDS if kind != "muon"
]


@pytest.mark.parametrize(
    ("kind", "dtype", "state_dtype"),
    [("muon", "fp32", "fp32"), ("adamw", "fp16", "bf16"), ("lion", "bf16", "bf16"), *OTHERS],
)
def test_it_learns_and_a_stopped_run_ends_with_the_bytes_of_one_that_was_not(
    kind: str, dtype: str, state_dtype: str, tmp_path: Path
) -> None:
    config = make_config(
        tmp_path,
        {"dtype": dtype},
        kind=kind,
        lr=RATES[kind],
        state_dtype=state_dtype,
        schedule="wsd",
    )
    whole = in_folder(config, tmp_path / "whole")
    assert losses(whole)[-1] < losses(whole)[0] - 0.1 and not events(whole)
    assert result_bytes(stop_and_resume(config, tmp_path / "stopped", 5)) == result_bytes(whole)


def test_a_poisoned_batch_is_skipped_and_said_so(
    tmp_path: Path, poison: Callable[..., None]
) -> None:
    config = make_config(tmp_path)
    poison(config, {3: float("nan"), 5: float("inf")})
    workdir = in_folder(config, tmp_path / "run")
    assert [(row["step"], row["event"], row["reason"]) for row in events(workdir)] == [
        (4, "skipped_step", "not_finite"),
        (6, "skipped_step", "not_finite"),
    ]
    assert len(losses(workdir)) == 6 and losses(workdir)[-1] < losses(workdir)[0]


def test_a_spike_is_skipped_where_asked_for_and_resumed_runs_judge_alike(
    tmp_path: Path, poison: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = GuardConfig(spike_std=200.0, spike_window_steps=3)
    config = make_config(tmp_path, guard=guard)
    poison(config, {6: 1e6})
    whole = in_folder(config, tmp_path / "whole")
    assert [(row["step"], row["reason"]) for row in events(whole)] == [(7, "spike")]
    with monkeypatch.context() as patch:
        signal_when(5, 15, patch)
        stopped = in_folder(config, tmp_path / "stopped")
    run(config, stopped)
    assert result_bytes(stopped) == result_bytes(whole)
    plain = in_folder(dataclasses.replace(config, optim=OPTIM), tmp_path / "plain")
    assert not events(plain)


def test_fp16_backs_off_until_gradients_fit_and_learns(tmp_path: Path) -> None:
    scale = LossScaleConfig(initial=2.0**30, hysteresis=1)
    config = make_config(
        tmp_path, {"dtype": "fp16", "num_steps": 20, "checkpoint_every": 20}, loss_scale=scale
    )
    workdir = in_folder(config, tmp_path / "run")
    found = events(workdir)
    assert (
        found
        and {row["reason"] for row in found} == {"loss_scale_overflow"}
        and len(found) > config.optim.guard.max_skips
    )
    assert losses(workdir)[-1] < losses(workdir)[0] - 0.1


def test_fp16_that_overflows_at_the_least_scale_ends_with_one_clear_error(tmp_path: Path) -> None:
    scale = LossScaleConfig(initial=2.0**30, floor=2.0**29, hysteresis=1)
    config = make_config(
        tmp_path, {"dtype": "fp16"}, loss_scale=scale, guard=GuardConfig(max_skips=3)
    )
    with pytest.raises(
        TrainingDiverged,
        match=(
            r"step 4: .*skipped as number 3 in a row.*overflow at the least loss scale .*use"
            r" train.dtype=bf16"
        ),
    ):
        in_folder(config, tmp_path / "run")


def test_bf16_and_fp16_stay_near_fp32(tmp_path: Path) -> None:
    found = {}
    for dtype in ("fp32", "bf16", "fp16"):
        config = make_config(tmp_path, {"dtype": dtype, "num_steps": 4})
        found[dtype] = losses(in_folder(config, tmp_path / dtype))
    assert max(abs(a - b) for a, b in zip(found["fp32"], found["bf16"], strict=True)) < 0.02
    assert max(abs(a - b) for a, b in zip(found["fp32"], found["fp16"], strict=True)) < 0.003
    assert json.dumps(found["fp16"]) != json.dumps(found["fp32"])


GOES_BACK = GuardConfig(rollback_skips=2, rollback_window_steps=6, rollback_every_steps=3)


def test_too_many_skips_send_the_run_back_past_the_batches_however_it_is_run(
    tmp_path: Path, poison: Callable[..., None]
) -> None:
    config = make_config(tmp_path, guard=GOES_BACK)
    poison(config, {4: float("nan"), 5: float("nan")})
    whole = in_folder(config, tmp_path / "whole")
    rows = read_rows(whole / "metrics.jsonl")
    assert [row for row in rows if "event" in row] == [
        {"step": 3, "event": "rollback", "number": 1, "from_step": 6, "passed_batches": 3}
    ]
    assert [row["step"] for row in rows if "train_loss" in row] == list(range(1, 9))
    # Saving, logging and stopping at other times, before and after it went back, change nothing.
    train = dataclasses.replace(config.train, log_every=4, checkpoint_every=5)
    rare = in_folder(dataclasses.replace(config, train=train), tmp_path / "rare")
    assert result_bytes(rare) == result_bytes(whole)
    for step in (4, 5, 7):
        stopped = stop_and_resume(config, tmp_path / f"stopped-{step}", step)
        assert result_bytes(stopped) == result_bytes(whole)


def test_a_run_goes_back_so_many_times_and_no_more(
    tmp_path: Path, poison: Callable[..., None]
) -> None:
    config = make_config(tmp_path, guard=dataclasses.replace(GOES_BACK, max_rollbacks=1))
    poison(config, {index: float("nan") for index in (1, 2, 3, 4)})
    with pytest.raises(
        TrainingDiverged,
        match=r"step \d: 2 skipped steps within 6, and the run has gone back 1 times",
    ):
        in_folder(config, tmp_path / "run")

"""Bad steps change nothing, whatever their gradients are; only good ones teach what is usual."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.optim.config import GuardConfig
from llm_core.optim.guard import (
    NOT_FINITE,
    OVERFLOW,
    SPIKE,
    UPDATED,
    Guard,
    StepReport,
    TrainingDiverged,
)
from tests.support.engine.small_optimizers import (
    KINDS,
    ONE,
    copies,
    make_optimizer,
    same,
    set_gradients,
)

CPU = torch.device("cpu")


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "state_dtype"),
    [(k, d) for k in KINDS for d in ("fp32", "bf16") if (k, d) != ("adafactor", "bf16")],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_skipped_step_leaves_weights_state_and_counts_bitwise_unchanged(
    kind: str, state_dtype: str, first: bool
) -> None:
    weights, optimizer, config = make_optimizer(
        kind, torch.float32, state_dtype=state_dtype, clip_norm=0.3
    )
    set_gradients(weights, 0)
    if not first:
        optimizer.step(config.lr, ONE, ONE)
    ignored = ("guard.skips_in_a_row", "guard.recent_skips")
    before, state = copies(weights), copies(optimizer.state_views())
    for bad in (math.nan, math.inf):
        for weight in weights.values():
            weight.grad = torch.full_like(weight, bad)
        report = StepReport(*optimizer.step(config.lr, ONE, ONE * bad).tolist())
        assert not report.updated
    after = copies(optimizer.state_views())
    assert same(copies(weights), before)
    assert same(
        {k: v for k, v in after.items() if k not in ignored},
        {k: v for k, v in state.items() if k not in ignored},
    )
    assert int(after["guard.skips_in_a_row"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_skipped_step_the_run_goes_on_as_if_it_had_not_been(kind: str) -> None:
    found = []
    for with_bad in (False, True):
        weights, optimizer, config = make_optimizer(kind, torch.float32)
        for seed in range(3):
            if with_bad and seed != 1:
                set_gradients(weights, 77, math.nan)
                optimizer.step(config.lr, ONE * math.nan, ONE)
            set_gradients(weights, seed)
            optimizer.step(config.lr, ONE, ONE)
        found.append(
            copies(weights)
            | {
                k: v.clone()
                for k, v in optimizer.state_views().items()
                if k.startswith("optimizer")
            }
        )
    assert same(*found) and float(found[0]["optimizer.num_updates"]) == 3


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(-2, 2), min_size=4, max_size=12),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_numbers_that_are_none_do_not_poison_the_window(values: list[float], bad: float) -> None:
    config = GuardConfig(spike_std=3.0, spike_window_steps=4)
    one, other = Guard(config, CPU), Guard(config, CPU)
    for value in values:
        assert (
            int(other.judge(scalar(bad), scalar(1.0)))
            == NOT_FINITE
            == int(other.judge(scalar(1.0), scalar(bad)))
        )
        assert int(one.judge(scalar(value), scalar(1.0))) == int(
            other.judge(scalar(value), scalar(1.0))
        )
    assert torch.equal(one.state["accepted"], other.state["accepted"])


def test_a_spike_of_loss_or_norm_is_skipped_once_the_window_is_full() -> None:
    guard = Guard(GuardConfig(spike_std=4.0, spike_window_steps=6), CPU)
    usual = [3.0, 3.1, 2.9, 3.05, 2.95, 3.0]
    assert int(guard.judge(scalar(1000.0), scalar(1.0))) == UPDATED  # nothing is known yet
    for value in usual:
        assert int(guard.judge(scalar(value), scalar(value / 3))) == UPDATED
    before = guard.state["accepted"].clone()
    assert int(guard.judge(scalar(5.0), scalar(1.0))) == SPIKE
    assert int(guard.judge(scalar(3.0), scalar(9.0))) == SPIKE
    assert torch.equal(guard.state["accepted"], before)
    assert int(guard.judge(scalar(3.0), scalar(1.0))) == UPDATED
    assert torch.allclose(
        guard.state["accepted"][0], torch.tensor([*usual[1:], 3.0], dtype=torch.float64)
    )


def test_skips_are_counted_in_a_row_and_in_the_window() -> None:
    guard = Guard(GuardConfig(rollback_window_steps=4), CPU)
    seen = []
    for loss in (1.0, math.nan, math.nan, 1.0, math.nan, 1.0, 1.0, 1.0):
        reason = guard.judge(scalar(loss), scalar(1.0))
        report = StepReport(*guard.report(scalar(loss), scalar(1.0), reason, None).tolist())
        seen.append((int(report.skips_in_a_row), int(report.recent_skips)))
    assert seen == [(0, 0), (1, 1), (2, 2), (0, 2), (1, 3), (0, 2), (0, 1), (0, 1)]


def test_overflow_is_no_fault_of_the_run_while_the_scale_can_fall() -> None:
    guard = Guard(GuardConfig(), CPU)
    yes, no = torch.tensor(True), torch.tensor(False)
    assert int(guard.judge(scalar(1.0), scalar(math.inf), yes)) == OVERFLOW
    assert int(guard.state["skips_in_a_row"]) == 0
    assert (
        int(guard.judge(scalar(1.0), scalar(math.inf), no))
        == NOT_FINITE
        == int(guard.judge(scalar(math.nan), scalar(1.0), yes))
    )
    assert int(guard.state["skips_in_a_row"]) == 2


def test_rows_of_metrics_hold_finite_numbers_only() -> None:
    report = StepReport(math.nan, 2.0, NOT_FINITE, 5, 5, 1.0)
    assert report.row(7, 0.1, 70) == {
        "step": 7,
        "event": "skipped_step",
        "reason": "not_finite",
        "lr": 0.1,
        "tokens": 70,
        "skipped_grad_norm": 2.0,
    }


def test_too_many_skips_in_a_row_end_the_run_with_the_way_out() -> None:
    _, _, config = make_optimizer("adamw")
    StepReport(math.nan, math.nan, NOT_FINITE, 4, 4, 1.0).check(9, 0.1, config, fp16=False)
    with pytest.raises(
        TrainingDiverged, match=r"step 9: loss nan.*skipped as number 5 in a row .*lower optim.lr"
    ):
        StepReport(math.nan, math.nan, NOT_FINITE, 5, 5, 1.0).check(9, 0.1, config, fp16=False)
    with pytest.raises(
        TrainingDiverged,
        match=r"fp16 gradients overflow at the least loss scale .1.; use train.dtype=bf16",
    ):
        StepReport(2.0, math.inf, NOT_FINITE, 5, 5, 1.0).check(9, 0.1, config, fp16=True)

"""The learning rate rises, stays and falls where it is told to."""

import math
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.optim.config import OptimConfig, ScheduleKind
from llm_core.training.schedule import learning_rate

KINDS = get_args(ScheduleKind)
SHAPES = ("linear", "sqrt", "cosine")


def rates(num_steps: int, **values: object) -> list[float]:
    config = OptimConfig(lr=0.01, **values)  # type: ignore[arg-type]
    return [learning_rate(step, num_steps, config) for step in range(1, num_steps + 1)]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(SHAPES),
    st.integers(1, 400),
    st.integers(0, 500),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_rate_rises_to_the_peak_then_falls_to_its_end(
    schedule: str,
    shape: str,
    num_steps: int,
    warmup_steps: int,
    min_lr_frac: float,
    decay_frac: float,
) -> None:
    found = rates(
        num_steps,
        schedule=schedule,
        decay_shape=shape,
        warmup_steps=warmup_steps,
        min_lr_frac=min_lr_frac,
        decay_frac=decay_frac,
    )
    assert all(0 <= rate <= 0.01 * (1 + 1e-12) for rate in found)
    assert all(a < b for a, b in pairwise(found[:warmup_steps]))
    if warmup_steps >= num_steps:
        return
    after = found[max(0, warmup_steps - 1) :]
    assert all(a >= b - 1e-15 for a, b in pairwise(after))
    if warmup_steps:
        assert abs(after[0] - 0.01) < 1e-15
    falls = {
        "constant": False,
        "inverse_sqrt": False,
        "wsd": round(decay_frac * num_steps) > 0,
    }.get(schedule, True)
    end = 0.01 * min_lr_frac if falls else 0.01
    if schedule == "inverse_sqrt":
        end = 0.01 * max(min_lr_frac, math.sqrt(max(1, warmup_steps) / num_steps))
    assert abs(found[-1] - end) < 1e-12


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(["linear", "cosine"]),
    st.integers(10, 50),
    st.floats(0, 1),
    st.floats(0.2, 1),
)
def test_rate_has_no_jumps(
    schedule: str, shape: str, warmup_steps: int, min_lr_frac: float, decay_frac: float
) -> None:
    """The more steps, the less it may change from one to the next. The root falls steeply at first,
    and is left out."""
    changes = []
    for factor in (1, 10):
        found = rates(
            200 * factor,
            schedule=schedule,
            decay_shape=shape,
            warmup_steps=warmup_steps * factor,
            min_lr_frac=min_lr_frac,
            decay_frac=decay_frac,
        )
        changes.append(max(abs(b - a) for a, b in pairwise(found)))
    assert changes[1] <= changes[0] * 0.2 + 1e-12


def test_rate_rises_linearly_to_the_peak() -> None:
    assert [round(rate, 6) for rate in rates(100, warmup_steps=4)[:4]] == [
        0.0025,
        0.005,
        0.0075,
        0.01,
    ]


@pytest.mark.parametrize(
    ("shape", "middle"), [("linear", 0.5), ("sqrt", 1 - math.sqrt(0.5)), ("cosine", 0.5)]
)
def test_stable_rate_falls_in_the_last_steps_alone(shape: str, middle: float) -> None:
    found = rates(
        100, schedule="wsd", warmup_steps=10, decay_frac=0.2, min_lr_frac=0.0, decay_shape=shape
    )
    assert found[9:80] == [0.01] * 71 and found[80] < 0.01
    assert abs(found[89] - 0.01 * middle) < 1e-12 and found[-1] == 0.0


def test_stable_phase_does_not_depend_on_the_number_of_steps() -> None:
    short, long = (rates(n, schedule="wsd", warmup_steps=10, decay_frac=0.2) for n in (100, 1000))
    assert short[:80] == long[:80]

"""The loss scale: a power of two within bounds, halved and doubled when it should be, whatever
overflows."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.optim.config import LossScaleConfig
from llm_core.optim.loss_scale import LossScaler

CPU = torch.device("cpu")


def scales(overflows: list[bool], **values: float) -> list[float]:
    scaler = LossScaler(LossScaleConfig(**values), CPU)  # type: ignore[arg-type]
    found = []
    for overflow in overflows:
        scaler.observe(torch.tensor(overflow), torch.tensor(False))
        found.append(float(scaler.scale))
    return found


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.booleans(), max_size=30),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([0.25, 1.0, 8.0]),
)
def test_scale_is_a_power_of_two_at_or_above_its_floor(
    overflows: list[bool], patience: int, interval: int, floor: float
) -> None:
    found = scales(
        overflows, initial=64.0, hysteresis=patience, growth_interval_steps=interval, floor=floor
    )
    for before, after, overflow in zip([64.0, *found], found, overflows, strict=False):
        assert math.log2(after).is_integer() and after >= floor
        assert after <= before if overflow else after >= before


def test_scale_falls_after_as_many_overflows_as_it_bears_and_then_at_each() -> None:
    found = scales(
        [True, False, True, True, True], initial=64.0, hysteresis=2, growth_interval_steps=100
    )
    assert found == [64.0, 64.0, 32.0, 16.0, 8.0]


def test_scale_grows_after_good_steps_and_bears_overflows_again() -> None:
    found = scales(
        [True, True, False, False, True, True], initial=8.0, hysteresis=2, growth_interval_steps=2
    )
    assert found == [8.0, 4.0, 4.0, 8.0, 8.0, 4.0]


def test_scale_stays_at_the_floor() -> None:
    assert (
        scales([True] * 4, initial=4.0, floor=2.0, hysteresis=1, growth_interval_steps=9)
        == [2.0] * 4
    )

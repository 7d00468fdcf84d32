from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_core.schedule import learning_rate
from llm_core.train_config import OptimConfig


@given(st.integers(1, 500), st.integers(0, 600), st.floats(0, 1))
def test_rate_stays_between_zero_and_peak_and_ends_at_its_minimum(num_steps: int, warmup_steps: int, min_lr_frac: float) -> None:
    config = OptimConfig(lr=0.01, warmup_steps=warmup_steps, min_lr_frac=min_lr_frac)
    rates = [learning_rate(step, num_steps, config) for step in range(1, num_steps + 1)]
    assert all(0 <= rate <= config.lr * (1 + 1e-12) for rate in rates)
    if warmup_steps < num_steps:
        assert abs(rates[-1] - config.lr * min_lr_frac) < 1e-12
        after = rates[max(0, warmup_steps - 1) :]
        assert all(a >= b - 1e-15 for a, b in pairwise(after))


def test_rate_rises_linearly_to_the_peak() -> None:
    config = OptimConfig(lr=0.01, warmup_steps=4)
    assert [round(learning_rate(step, 100, config), 6) for step in range(1, 5)] == [0.0025, 0.005, 0.0075, 0.01]

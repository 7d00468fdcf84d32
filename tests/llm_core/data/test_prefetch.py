"""Reading ahead gives the batches of reading when asked, in any order, and hands on what goes
wrong."""

from __future__ import annotations

import threading

import pytest
import torch

from llm_core.data.batch import Batch
from llm_core.data.prefetch import Prefetch


def batch(step: int) -> Batch:
    return Batch(torch.full((2, 3), step), torch.full((2, 3), step + 1))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_batches_are_those_of_their_steps_whatever_the_order(depth: int) -> None:
    with Prefetch(batch, 10, depth) as batches:
        for step in (0, 1, 2, 7, 8, 9, 3, 4, 4, 5, 12, 6):
            ids, targets, *_ = batches(step)
            assert int(ids[0, 0]) == step and int(targets[0, 0]) == step + 1


def test_no_step_is_made_beyond_the_last_or_far_ahead() -> None:
    made: list[int] = []
    with Prefetch(lambda step: made.append(step) or batch(step), 6, 2) as batches:  # type: ignore[func-returns-value]
        batches(0)
        batches(1)
        assert max(made) <= 1 + 2 + 1
        for step in range(2, 6):
            batches(step)
    assert sorted(made) == list(range(6))


def test_an_error_of_the_thread_reaches_the_caller_and_later_calls_work() -> None:
    def fails_at_three(step: int) -> Batch:
        if step == 3:
            raise ValueError("shard train-00001.arrow is gone")
        return batch(step)

    with Prefetch(fails_at_three, 10, 2) as batches:
        for step in range(3):
            batches(step)
        with pytest.raises(ValueError, match=r"train-00001\.arrow is gone"):
            batches(3)
        assert int(batches(5)[0][0, 0]) == 5


def test_leaving_ends_the_thread() -> None:
    with Prefetch(batch, 100, 2) as batches:
        batches(0)
        assert any(thread.name.startswith("prefetch") for thread in threading.enumerate())
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())

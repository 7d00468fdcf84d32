"""Requests come when they are due, in exact lengths, and every one of them is timed."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from llm_core.bench.latency import summarise
from llm_core.bench.load import Asked, load_engine, random_requests
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.config import EngineConfig
from llm_core.infer.engine import Engine
from llm_core.infer.requests import NewToken
from tests.support.engine.small_model import make_model


def make_engine(max_running: int = 8, **kwargs: int) -> Engine:
    config = EngineConfig(cache_tokens=1024, budget_tokens=64, max_running=max_running, **kwargs)
    return Engine(make_model(num_kv_heads=2, dtype=torch.float32), config, [])


def test_arrivals_are_exponential_from_a_seed_and_not_rescaled() -> None:
    asked = random_requests(4000, (1, 4), (2, 3), 50, seed=3, rate_per_s=20.0)
    gaps = np.diff([each.at_s for each in asked], prepend=0.0)
    assert np.mean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert np.std(gaps) == pytest.approx(1 / 20, rel=0.08)
    # A sum of exponential gaps is N / rate by no more than chance.
    assert asked[-1].at_s != pytest.approx(4000 / 20, abs=1e-6)
    assert asked == random_requests(4000, (1, 4), (2, 3), 50, seed=3, rate_per_s=20.0)
    assert asked != random_requests(4000, (1, 4), (2, 3), 50, seed=4, rate_per_s=20.0)


def test_lengths_fill_their_bounds_and_ids_the_vocabulary() -> None:
    asked = random_requests(500, (1, 4), (2, 3), 50, seed=0)
    assert {len(each.prompt_ids) for each in asked} == {1, 2, 3, 4}
    assert {each.new_tokens for each in asked} == {2, 3}
    assert {id for each in asked for id in each.prompt_ids} == set(range(50))
    assert {each.at_s for each in asked} == {0.0}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_closed_loop_holds_so_many_requests_open(
    concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, open_at_once = make_engine(), []
    step = Engine.step

    def counted(self: Engine) -> list[NewToken]:
        open_at_once.append(self.num_running + self.num_waiting)
        return step(self)

    monkeypatch.setattr(Engine, "step", counted)
    asked = random_requests(7, (3, 9), (4, 6), 61, seed=1)
    answered = load_engine(engine, asked, GREEDY, concurrency)
    assert max(open_at_once) == concurrency
    assert [each.num_tokens for each in answered] == [each.new_tokens for each in asked]
    assert engine.num_used_blocks == 0


def test_what_waits_for_a_place_in_the_engine_shows_in_queue_and_first_token() -> None:
    engine = make_engine(max_running=1)
    answered = load_engine(engine, random_requests(3, (8, 8), (20, 20), 61, seed=0), GREEDY)
    first, second, third = answered
    assert all(each.begun_at is not None for each in answered)
    assert first.due_at == second.due_at == third.due_at
    assert first.chunks[-1][0] <= second.begun_at <= second.chunks[0][0] <= third.begun_at  # type: ignore[operator]
    assert third.ttft_s > second.e2e_s - second.ttft_s


def test_a_slow_engine_is_charged_from_when_requests_were_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Engine.step

    def slow(self: Engine) -> list[NewToken]:
        time.sleep(0.02)
        return step(self)

    monkeypatch.setattr(Engine, "step", slow)
    asked = [Asked((1, 2, 3), 3, at_s) for at_s in (0.0, 0.005, 0.01, 0.1)]
    answered = load_engine(make_engine(), asked, GREEDY)
    started = answered[0].due_at
    assert [each.due_at - started for each in answered] == pytest.approx([0, 0.005, 0.01, 0.1])
    # Both fell due in the first step, were sent behind it, and answered by the next.
    for each in answered[1:3]:
        assert each.sent_at - each.due_at > 0.005 and each.ttft_s > 0.02
    assert answered[3].sent_at >= answered[3].due_at


def test_every_token_of_a_burst_is_counted() -> None:
    engine = make_engine(burst_tokens=4)
    asked = random_requests(5, (3, 9), (4, 11), 61, seed=2)
    answered = load_engine(engine, asked, GREEDY)
    assert [sum(count for _, count in each.chunks) for each in answered] == [
        each.new_tokens for each in asked
    ]
    assert max(count for each in answered for _, count in each.chunks) > 1
    assert summarise(answered)["output_tokens"] == sum(each.new_tokens for each in asked)

"""Puts an engine under load: a fixed number of open requests (closed loop), or requests that arrive
when they are due, whether or not earlier ones have ended (open loop).

Arrivals of an open loop are a Poisson process: gaps are exponential, drawn from a seed, and not
rescaled. Prompts are random ids of exact length, answers have the length that was asked for, and
nothing ends early. Requests, engine and clock share one thread, so a request that falls due in the
middle of a step is submitted behind it; its times count from when it was due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_core.bench.latency import Answered
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.engine import Engine
from llm_core.infer.requests import Request
from llm_core.infer.scheduler import Running


@dataclass(frozen=True)
class Asked:
    """A request that is to come."""

    prompt_ids: tuple[int, ...]
    new_tokens: int
    at_s: float = 0.0
    """When it is due, after the begin of the load; a closed loop does not ask."""


def random_requests(
    count: int,
    prompt_tokens: tuple[int, int],
    new_tokens: tuple[int, int],
    vocab_size: int,
    seed: int,
    rate_per_s: float | None = None,
) -> list[Asked]:
    """Requests whose lengths are uniform between (and with) the bounds; all due at once without a
    rate."""
    random = np.random.default_rng(seed)
    gaps_s = random.exponential(1 / rate_per_s, count) if rate_per_s else np.zeros(count)
    prompts = random.integers(prompt_tokens[0], prompt_tokens[1] + 1, count)
    answers = random.integers(new_tokens[0], new_tokens[1] + 1, count)
    return [
        Asked(tuple(random.integers(0, vocab_size, int(length)).tolist()), int(new), float(at_s))
        for length, new, at_s in zip(prompts, answers, gaps_s.cumsum(), strict=True)
    ]


def load_engine(
    engine: Engine,
    asked: Sequence[Asked],
    params: SamplingParams,
    concurrency: int | None = None,
) -> list[Answered]:
    """Answer all requests, in order of arrival.

    concurrency: requests that are open at any time; None: each is sent when it is due. The engine
    must have no stop ids and no other work. Raises ConfigError for what it can never hold.
    """
    coming = deque(asked)
    answered: list[Answered] = []
    unfinished: dict[Request, Answered] = {}
    waiting: dict[Running, Answered] = {}
    started = time.perf_counter()
    while coming or engine.busy:
        now = time.perf_counter()
        while coming and (
            started + coming[0].at_s <= now
            if concurrency is None
            else len(unfinished) < concurrency
        ):
            each = coming.popleft()
            due_at = started + each.at_s if concurrency is None else now
            request = engine.submit(each.prompt_ids, params, each.new_tokens)
            answer = Answered(due_at, time.perf_counter())
            answered.append(answer)
            unfinished[request] = answer
            waiting[engine.scheduler.waiting[-1]] = answer
        if not engine.busy:
            time.sleep(max(0.0, started + coming[0].at_s - time.perf_counter()))
            continue
        began = time.perf_counter()
        new_tokens = engine.step()
        now = time.perf_counter()
        for sequence in [each for each in waiting if each not in engine.scheduler.waiting]:
            waiting.pop(sequence).begun_at = began
        told: dict[Request, int] = {}
        for new in new_tokens:
            if new.id is not None:
                told[new.request] = told.get(new.request, 0) + 1
        for request, count in told.items():
            unfinished[request].chunks.append((now, count))
            unfinished[request].num_tokens += count
        for new in new_tokens:
            if new.finish is not None:
                del unfinished[new.request]
    return answered

"""What of the traffic a process waits for is what the order of its exchanges says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig, LinkConfig
from llm_core.planner.step import TimePlan, Work, plan_time
from llm_core.planner.traffic import DDP_BUCKET, Traffic, messages_in_turn
from llm_core.training.config import TrainConfig

FORWARD_S, BACKWARD_S = 1.0, 2.0
Event = tuple[str, Any]


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> Iterator[Event]:
    """What torch's Schedule1F1B does on a stage: compute for so long, post messages, wait for
    them. A message is (direction, micro batch, the lower stage of the two)."""

    def forward(number: int, of: int) -> list[Any]:
        return [("forward", number, of)] if 0 <= of < stages - 1 else []

    def backward(number: int, of: int) -> list[Any]:
        return [("backward", number, of)] if 0 <= of < stages - 1 else []

    def exchange(messages: list[Any]) -> Iterator[Event]:
        yield "post", messages
        yield "wait", messages

    warm_up = min(micro_batches, stages - stage)
    sent: list[Any] = []
    for number in range(warm_up):
        yield from exchange(forward(number, stage - 1))
        yield "compute", FORWARD_S
        yield "wait", sent
        sent = forward(number, stage)
        if number < warm_up - 1:
            yield "post", sent
    given: list[Any] = []
    for number in range(micro_batches):
        yield from exchange(sent + backward(number, stage))
        yield "compute", BACKWARD_S
        sent, later = [], number + warm_up
        if later < micro_batches:
            yield from exchange(backward(number, stage - 1) + forward(later, stage - 1))
            yield "compute", FORWARD_S
            sent = forward(later, stage)
        else:
            yield "wait", given
            given = backward(number, stage - 1)
            yield "post", given
    yield "wait", given


def elapsed_s(stages: int, micro_batches: int, message_s: float) -> float:
    """Run all stages; a message begins when both have posted it."""
    programs = [list(one_f_one_b(stage, stages, micro_batches)) for stage in range(stages)]
    at, now_s = [0] * stages, [0.0] * stages
    posted: dict[Any, list[float]] = {}
    while any(at[stage] < len(programs[stage]) for stage in range(stages)):
        for stage, program in enumerate(programs):
            while at[stage] < len(program):
                what, value = program[at[stage]]
                if what == "compute":
                    now_s[stage] += value
                elif what == "post":
                    for message in value:
                        posted.setdefault(message, []).append(now_s[stage])
                elif any(len(posted.get(message, [])) < 2 for message in value):
                    break
                else:
                    ends = [max(posted[message]) + message_s for message in value]
                    now_s[stage] = max([now_s[stage], *ends])
                at[stage] += 1
    return max(now_s)


@given(stages=st.integers(2, 6), more=st.integers(0, 12), message_s=st.floats(0.01, 10))
def test_1f1b_waits_for_as_many_messages_as_its_order_says(
    stages: int, more: int, message_s: float
) -> None:
    micro_batches = stages + more
    found_s = elapsed_s(stages, micro_batches, message_s)
    computed_s = (micro_batches + stages - 1) * (FORWARD_S + BACKWARD_S)
    waits = messages_in_turn("1f1b", stages, micro_batches, 1)
    assert found_s == pytest.approx(computed_s + waits * message_s)


def plan(model: ModelConfig, parallel: ParallelConfig, overlap: float = 1.0) -> TimePlan:
    links = {"all_reduce": LinkConfig(0, 1)}
    hardware = HardwareConfig("X", 99, 20, 0.2, 0.1, links=links, overlap=overlap, memory_share=1)
    train = TrainConfig(num_steps=1, global_batch_sequences=64, seq_len=64, micro_batch_sequences=8)
    return plan_time(Work(model, OptimConfig(lr=1e-3), train, parallel), hardware)


def of_ddp(model: ModelConfig, overlap: float = 1.0) -> Traffic:
    return plan(model, ParallelConfig("ddp", 2), overlap).traffic[0]


def test_ddp_copies_each_gradient_into_its_bucket_and_a_pipeline_takes_it_back_too() -> None:
    model = ModelConfig(256, 64, 2, 2, 2, 128, 64, tied_embeddings=False)

    def more_s(parallel: ParallelConfig, than: ParallelConfig) -> float:
        return plan(model, parallel).optimizer_s - plan(model, than).optimizer_s

    weights = model.num_parameters()
    assert more_s(ParallelConfig("ddp", 2), ParallelConfig()) == pytest.approx(8 * weights / 20e9)
    split = more_s(ParallelConfig("ddp", 4, pp=2), ParallelConfig("ddp", 2, pp=2))
    assert split == pytest.approx(16 * (weights / 2) / 20e9, rel=0.01)


def test_gradients_of_one_bucket_hide_behind_nothing() -> None:
    small = of_ddp(ModelConfig(256, 64, 2, 2, 2, 128, 64))
    assert small.exposed_s == small.elapsed_s > 0


def test_the_bucket_of_the_embedding_hides_behind_nothing() -> None:
    wide = ModelConfig(256, 1024, 4, 8, 8, 3072, 64)
    weights = of_ddp(wide).num_bytes / 4
    assert of_ddp(wide).exposed_s == pytest.approx(of_ddp(wide, 0).exposed_s * DDP_BUCKET / weights)
    many_ids = replace(wide, vocab_size=1 << 16)
    share = of_ddp(many_ids).exposed_s / of_ddp(many_ids).elapsed_s
    assert share == pytest.approx(1024 * (1 << 16) * 4 / of_ddp(many_ids).num_bytes)

"""What of the traffic a process waits for is what the order of its exchanges says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.optim.config import OptimConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.hardware import HardwareConfig, LinkConfig
from llm_core.planner.step import TimePlan, Work, plan_time
from llm_core.planner.traffic import DDP_BUCKET, Traffic, pipeline_waits_s
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


def torchs_order(stages: int, per_rank: int, micro_batches: int) -> list[list[Event]]:
    """The same of torch's interleaved schedule, which posts messages long before it waits."""
    parts = [
        SimpleNamespace(
            stage_index=part * stages, num_stages=stages * per_rank, group_size=stages,
            group_rank=0, has_backward=True, device=None, group=None, is_first=part == 0,
            is_last=False, submod=nn.Linear(1, 1), stage_index_to_group_rank={},
        )
        for part in range(per_rank)
    ]  # fmt: skip
    schedule: Any = ScheduleInterleaved1F1B(parts, micro_batches, loss_fn=max)  # type: ignore[arg-type]
    found = []
    for rank in range(stages):
        events: list[Event] = []
        for kind, stage, number in (
            (action.computation_type.value, action.stage_index, action.microbatch_index)
            for action in schedule.pipeline_order_with_comms[rank]
        ):
            before, after = ("forward", number, stage - 1), ("backward", number, stage)
            if kind in ("F", "B"):
                awaited = [before] if kind == "F" else [after]
                known = 0 <= awaited[0][2] < stages * per_rank - 1
                events.append(("wait", awaited if known else []))
                events.append(("compute", (FORWARD_S if kind == "F" else BACKWARD_S) / per_rank))
            elif kind in ("SEND_F", "RECV_F"):
                events.append(
                    ("post", [before if kind == "RECV_F" else ("forward", number, stage)])
                )
            elif kind in ("SEND_B", "RECV_B"):
                events.append(
                    ("post", [after if kind == "RECV_B" else ("backward", number, stage - 1)])
                )
        found.append(events)
    return found


def elapsed_s(programs: list[list[Event]], message_s: float) -> float:
    """Run all stages; a message begins when both have posted it."""
    at, now_s = [0] * len(programs), [0.0] * len(programs)
    posted: dict[Any, list[float]] = {}
    while any(at[rank] < len(program) for rank, program in enumerate(programs)):
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                what, value = program[at[rank]]
                if what == "compute":
                    now_s[rank] += value
                elif what == "post":
                    for message in value:
                        posted.setdefault(message, []).append(now_s[rank])
                elif any(len(posted.get(message, [])) < 2 for message in value):
                    break
                else:
                    ends = [max(posted[message]) + message_s for message in value]
                    now_s[rank] = max([now_s[rank], *ends])
                at[rank] += 1
    return max(now_s)


@given(stages=st.integers(2, 6), more=st.integers(0, 12), message_s=st.floats(0.01, 10))
def test_1f1b_waits_for_as_many_messages_as_its_order_says(
    stages: int, more: int, message_s: float
) -> None:
    micro_batches = stages + more
    programs = [list(one_f_one_b(stage, stages, micro_batches)) for stage in range(stages)]
    computed_s = (micro_batches + stages - 1) * (FORWARD_S + BACKWARD_S)
    waits_s = pipeline_waits_s("1f1b", stages, micro_batches, 1, message_s, 3.0)
    assert elapsed_s(programs, message_s) == pytest.approx(computed_s + waits_s)


@pytest.mark.parametrize("message_s", [0.01, 0.2, 2.0, 20.0])
@pytest.mark.parametrize(("stages", "per_rank"), [(2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("micro_batches", [8, 32])
def test_interleaved_takes_as_long_as_torchs_order_says(
    stages: int, per_rank: int, micro_batches: int, message_s: float
) -> None:
    programs = torchs_order(stages, per_rank, micro_batches)
    waits_s = pipeline_waits_s(
        "interleaved", stages, micro_batches, per_rank, message_s, FORWARD_S + BACKWARD_S
    )
    found_s = elapsed_s(programs, 0) + waits_s
    assert found_s == pytest.approx(elapsed_s(programs, message_s), rel=0.15)


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


def test_experts_are_gathered_by_fsdp_or_sent_tokens_and_the_bytes_say_which() -> None:
    model = ModelConfig(256, 64, 4, 4, 4, 128, 64, experts=ExpertsConfig(8, 2))
    train = TrainConfig(
        num_steps=1, global_batch_sequences=16, micro_batch_sequences=2, seq_len=64, dtype="bf16"
    )
    rows = {}
    for ep in (1, 4):
        parallel = ParallelConfig("fsdp", num_processes=4, ep=ep)
        work = Work(model, OptimConfig(lr=1e-3), train, parallel, MemoryConfig("full"))
        hardware = HardwareConfig("X", 99, 20, 0.2, 0.1)
        rows[ep] = {row.axis: row.num_bytes for row in plan_time(work, hardware).traffic}
    experts = model.num_layers * 8 * 3 * model.dim * model.ffn_dim
    micro_batches, part = 2, 3 / 4
    # Gathered twice in 16 bits and reduced in 32, in each micro batch.
    saved = micro_batches * part * experts * (2 * 2 + 4)
    assert rows[1]["fsdp"] - rows[4]["fsdp"] == pytest.approx(saved)
    # Six trips of two pairs a token: there, back, there and back again, and both gradients.
    pairs = train.micro_batch_sequences * train.seq_len * 2
    trips = 6 * micro_batches * model.num_layers
    assert rows[4]["ep"] == pytest.approx(trips * part * pairs * model.dim * 2)
    assert "ep" not in rows[1]

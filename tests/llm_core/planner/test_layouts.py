"""Layouts that the planner proposes can run and fit, and follow the links of the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimConfig, OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.planner.activations import layers_in_flight
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.layouts import Choice, choose_layout, legal_layouts, reasons
from llm_core.planner.step import Work, bubble_share, plan_time
from llm_core.planner.traffic import Traffic
from llm_core.training.config import TrainConfig
from llm_core.training.run_config import check_run
from tests.support.distributed.cases import layout

H100 = HardwareConfig("H100", 80, 3350, 989, 67, node_gb_s=450, network_gb_s=50)
WITHOUT_LINKS = HardwareConfig("RTX 4090", 24, 1008, 165, 83, node_gb_s=12, network_gb_s=0.3)
LLAMA_8B = ModelConfig(128256, 4096, 32, 32, 8, 14336, 8192, tied_embeddings=False)
SMALL = ModelConfig(32000, 768, 12, 12, 12, 2048, 2048)
LLAMA_70B = ModelConfig(128256, 8192, 80, 64, 8, 28672, 8192, tied_embeddings=False)


def work(model: ModelConfig, rows: int = 64, seq_len: int = 2048) -> Work:
    train = TrainConfig(
        num_steps=1000, global_batch_sequences=rows, seq_len=seq_len, micro_batch_sequences=1,
        dtype="bf16", compile=True,
    )  # fmt: skip
    return Work(model, OptimConfig(lr=1e-4), train, ParallelConfig(kind="auto"))


def chosen(choice: Choice) -> ParallelConfig:
    assert choice.best is not None
    return choice.best.work.parallel


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 8, 12, 64]), st.sampled_from([SMALL, LLAMA_8B]), st.booleans(),
    st.integers(0, 400),
)  # fmt: skip
def test_every_layout_can_run_and_keeps_tensor_ranks_in_a_node(
    num_devices: int, model: ModelConfig, compiled: bool, pick: int
) -> None:
    given = work(model, rows=192)
    given = replace(given, train=replace(given.train, compile=compiled))
    found = list(legal_layouts(given, H100, num_devices))
    each = found[pick % len(found)]
    check_run(each.model, each.train, each.parallel, each.memory, each.optim.kind)
    assert each.parallel.num_processes == num_devices
    for one in found:
        assert one.parallel.tp * (one.parallel.dp_shard or 1) <= H100.devices_per_node


def test_tensor_ranks_may_be_all_processes() -> None:
    found = [each.parallel for each in legal_layouts(work(LLAMA_8B), H100, 8)]
    assert any(parallel.tp == 8 for parallel in found)


def test_what_fits_one_device_needs_no_axis_but_data() -> None:
    parallel = chosen(choose_layout(work(SMALL), H100, 8))
    assert (parallel.pp, parallel.cp, parallel.tp) == (1, 1, 1)


def test_what_does_not_fit_whole_is_sharded() -> None:
    choice = choose_layout(work(LLAMA_8B), H100, 8)
    assert chosen(choice).shards_weights
    assert all(each.memory.total <= 80e9 for each in choice.fitting)
    steps = [each.time.step_s for each in choice.fitting]
    # The first may be plainer than what is 2 % faster.
    assert steps[1:] == sorted(steps[1:])
    assert steps[0] <= 1.02 * steps[1]


def test_slow_links_ask_for_more_pipeline_than_fast_ones() -> None:
    parallel = chosen(choose_layout(work(LLAMA_8B, rows=128), WITHOUT_LINKS, 16))
    assert parallel.pp > parallel.tp
    fast = chosen(choose_layout(work(LLAMA_8B, rows=128), replace(H100, memory_gb=24), 16))
    assert fast.pp < parallel.pp


def test_what_fits_nowhere_is_told_with_ways_out() -> None:
    choice = choose_layout(work(LLAMA_70B, rows=8), H100, 8)
    assert choice.best is None
    said = " ".join(reasons(choice, H100))
    assert "no layout fits" in said
    assert "GB a device" in said
    assert "devices would fit" in said


def test_devices_that_share_no_batch_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="num_processes=7.*global_batch_sequences .3.*multiple"):
        choose_layout(work(replace(SMALL, num_layers=1), rows=3), H100, 7)


def test_one_device_may_keep_its_weights_in_main_memory() -> None:
    given = replace(work(LLAMA_8B), memory=MemoryConfig(weights_in="host"))
    assert chosen(choose_layout(given, H100, 1)).kind == "fsdp"


@pytest.mark.parametrize(
    ("schedule", "stages", "m", "share"),
    [
        ("naive", 4, 8, 3 / 4),
        ("gpipe", 4, 8, 3 / 11),
        ("1f1b", 4, 8, 3 / 11),
        ("interleaved", 4, 8, 3 / 19),
        ("zero_bubble_v", 4, 8, 0),
        ("zero_bubble", 4, 8, 3 / 51),
        ("dualpipe_v", 4, 8, 3 / 27),
    ],
)
def test_bubbles_are_those_of_the_papers(schedule: str, stages: int, m: int, share: float) -> None:
    """(p - 1) / (m + p - 1): Huang et al. (2019); / (v m + p - 1): Narayanan et al. (2021)."""
    parallel = layout(stages, "ddp", pp=stages, pp_schedule=schedule)
    assert bubble_share(parallel, m) == pytest.approx(share)


@pytest.mark.parametrize(
    ("schedule", "first", "last"),
    [("gpipe", 8, 8), ("1f1b", 4, 1), ("interleaved", 5.5, 2.5), ("zero_bubble_v", 4, 4)],
)
def test_later_ranks_of_a_pipeline_keep_fewer_micro_batches(
    schedule: str, first: float, last: float
) -> None:
    """Of 8, on 4 ranks, in units of their layers (Narayanan et al., 2021, section 2.2)."""
    parallel = layout(4, "ddp", pp=4, pp_schedule=schedule)
    plan = parallel.plan(LLAMA_8B)
    assert plan is not None
    kept = [
        layers_in_flight(LLAMA_8B, parallel, 8, rank) / plan.num_layers_of(rank) for rank in (0, 3)
    ]
    assert kept == [first, last]


@pytest.mark.parametrize(("kind", "num_bytes"), [("adamw", 28), ("lion", 20)])
def test_an_optimizer_moves_weights_gradients_and_its_state(
    kind: OptimizerKind, num_bytes: int
) -> None:
    """Both read, the weight written, and the state read and written."""
    given = replace(work(SMALL), optim=OptimConfig(lr=1e-4, kind=kind), parallel=layout(1, "none"))
    moved = num_bytes * SMALL.num_parameters() / (H100.memory_gb_s * 1e9 * H100.memory_share)
    assert plan_time(given, H100).optimizer_s == pytest.approx(moved)


def traffic(
    parallel: ParallelConfig, hardware: HardwareConfig = H100, **train: Any
) -> dict[str, Traffic]:
    given = work(LLAMA_8B)
    given = replace(given, parallel=parallel, train=replace(given.train, **train))
    return {each.axis: each for each in plan_time(given, hardware).traffic}


def test_bytes_sent_are_those_of_rings() -> None:
    weights, n = LLAMA_8B.num_parameters(), 8
    part = (n - 1) / n
    assert traffic(layout(n, "ddp"))["ddp"].num_bytes == pytest.approx(2 * part * 4 * weights)
    m = 64 // n
    for bits in (16, 32):
        for kind, gathers, reductions in (("zero1", 1, 1), ("zero2", 1, m), ("fsdp", 2 * m, m)):
            sent = traffic(layout(n, kind), gradient_bits=bits)[kind].num_bytes
            copies = gathers * 2 + reductions * bits // 8
            assert sent == pytest.approx(part * weights * copies)


def test_a_group_that_crosses_nodes_is_as_fast_as_their_cards() -> None:
    # Eight devices of a node share eight cards of 50 GB/s; one alone has its own.
    assert H100.group_bandwidth(16, 16) == pytest.approx(min(450e9, 8 * 50e9) * H100.link_share)
    assert H100.group_bandwidth(2, 16) == pytest.approx(50e9 * H100.link_share)
    assert H100.group_bandwidth(8, 8) == pytest.approx(450e9 * H100.link_share)

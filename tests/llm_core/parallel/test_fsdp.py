"""Sharded weights are gathered and reduced as often as each stage of ZeRO says, and take the bytes
that it publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.tiles import check_gathered_tiles
from tests.support.distributed.alone import as_process
from tests.support.distributed.cases import layout
from tests.support.distributed.exactness import LR, make_trainer, ranks_of
from tests.support.distributed.held import WORLD, measure
from tests.support.distributed.problem import Problem
from tests.support.engine.live_bytes import LiveBytes
from tests.support.engine.small_runs import TRAIN

UNITS = 3
"""Two blocks, and the rest."""


class Exchanges(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.number: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation.namespace == "c10d":
            self.number[operation._schema.name] += 1
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "gathers", "reductions"),
    [
        ("zero1", UNITS, UNITS),
        ("zero2", UNITS, 4 * UNITS),
        ("fsdp", 4 * (2 * UNITS - 1), 4 * UNITS),
    ],
)
def test_four_micro_batches_exchange_as_often_as_the_stage_of_zero_says(
    kind: str, gathers: int, reductions: int, tmp_path: Path
) -> None:
    parallel = layout(WORLD, kind)
    problem = Problem(rows=4 * WORLD, layers=UNITS - 1, dtype="bf16")
    with as_process(0, parallel) as ranks:
        trainer = make_trainer(problem, parallel, 1, ranks, tmp_path)
        with Exchanges() as exchanges:
            trainer.train_step(0, LR)
    # FSDP keeps its root unit whole from forward to backward.
    assert exchanges.number["c10d::_allgather_base_"] == gathers
    assert exchanges.number["c10d::_reduce_scatter_base_"] == reductions


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("kind", ["zero1", "zero2"])
def test_a_process_holds_the_published_bytes_and_two_units(
    kind: str, bits: int, tmp_path: Path
) -> None:
    """Also of all that the planner counts."""
    with as_process(0, layout(WORLD, kind)) as ranks:
        found = measure(kind, "bf16", bits, ranks, tmp_path)
    assert found.holds_the_published and found.rest == pytest.approx(12 / WORLD, abs=0.01)
    assert found.peak == pytest.approx(found.planned, rel=0.08)


WIDE = ModelConfig(64, 64, 2, 4, 4, 1024, 16)
"""Most of its weights are in feed-forwards."""


def test_gathered_tiles_take_the_place_of_whole_feed_forwards(tmp_path: Path) -> None:
    peaks = {}
    for gather, tiles in (("whole", 4), ("tiles", 2), ("tiles", 4)):
        memory = MemoryConfig(ffn_tiles=tiles, ffn_gather=gather)  # type: ignore[arg-type]
        with as_process(0, layout(WORLD, "fsdp")) as ranks:
            problem = Problem(rows=WORLD, dtype="bf16")
            trainer = make_trainer(problem, layout(WORLD, "fsdp"), 1, ranks, tmp_path, memory, WIDE)
            trainer.train_step(0, LR)
            with LiveBytes(trainer.layout.bare.parameters()) as live:
                trainer.train_step(1, LR)
        peaks[gather, tiles] = live.peak
    feed_forward = 3 * 64 * 1024
    # The copy in 16 bits, and gradients in 16 bits and in float32 while they are sent.
    assert peaks["whole", 4] - peaks["tiles", 4] > 2 * feed_forward
    assert peaks["tiles", 2] > peaks["tiles", 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": {"kind": "zero2"}}, "needs parallel.kind=fsdp, it is zero2"),
        ({"train": {"gradient_bits": 16}}, "needs train.gradient_bits=32, it is 16"),
        ({"memory": {"ffn_tiles": 1}}, "needs ffn_tiles above 1, it is 1"),
        ({"parallel": {"num_processes": 3}}, "3 processes must divide model.dim"),
        ({"memory": {"ffn_tiles": 9}}, r"ffn_tiles \(9\) must be at most 8 for"),
    ],
)
def test_what_does_not_go_with_gathered_tiles_is_refused(
    changes: dict[str, dict[str, Any]], message: str
) -> None:
    groups: dict[str, dict[str, Any]] = {
        "parallel": {"kind": "fsdp", "num_processes": 2},
        "train": {"dtype": "bf16"},
        "memory": {"ffn_tiles": 2, "ffn_gather": "tiles"},
    }
    parallel, train, memory = (values | changes.get(name, {}) for name, values in groups.items())
    with pytest.raises(ConfigError, match=message):
        check_gathered_tiles(
            WIDE, replace(TRAIN, **train), ParallelConfig(**parallel), MemoryConfig(**memory)
        )


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["zero1", "zero2"])
def test_weights_in_main_memory_learn_as_those_on_the_device(
    kind: str, group_of_one: None, tmp_path: Path
) -> None:
    parallel, reports = layout(1, kind), []
    for place in ("device", "host"):
        memory = MemoryConfig(weights_in=place)  # type: ignore[arg-type]
        trainer = make_trainer(
            Problem(dtype="bf16"), parallel, 2, ranks_of(parallel), tmp_path, memory
        )
        reports.append(torch.stack([trainer.train_step(step, LR) for step in range(3)]))
    assert torch.equal(*reports)


@pytest.mark.parametrize(("bits", "dtype"), [(16, torch.bfloat16), (32, torch.float32)])
@pytest.mark.parametrize("kind", ["zero1", "zero2", "fsdp"])
def test_shards_of_gradients_have_the_bits_that_are_asked_for(
    kind: str, bits: Literal[16, 32], dtype: torch.dtype, tmp_path: Path
) -> None:
    parallel = layout(WORLD, kind)
    problem = Problem(rows=2 * WORLD, dtype="bf16", gradient_bits=bits)
    with as_process(0, parallel) as ranks:
        trainer = make_trainer(problem, parallel, 1, ranks, tmp_path)
        trainer.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
        trainer.train_step(0, LR)
    weights = list(trainer.layout.bare.parameters())
    assert {weight.grad.dtype for weight in weights if weight.grad is not None} == {dtype}
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert {state.piece.dtype for state in trainer.optimizer.states()} == {torch.float32}

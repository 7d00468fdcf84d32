"""Sums over processes go in few messages, once in a step. One process stands for four, whose
exchanges are written down."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from llm_core.parallel import buckets
from llm_core.parallel.apply import build_layout
from llm_core.parallel.buckets import split_buckets, sum_over
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks, make_meshes
from llm_core.training.step import accumulate_gradients
from tests.support.engine.small_runs import MODEL, run_config

CPU = torch.device("cpu")


@pytest.fixture
def four_processes() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


class Sums:
    """What is summed, over whom; each sum doubles, as if two processes had the same."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.groups: list[Any] = []

    def __call__(self, tensor: Tensor, *_: Any, group: Any = None, **__: Any) -> None:
        self.sizes.append(tensor.numel())
        self.groups.append(group)
        tensor.mul_(2)


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_buckets_keep_the_order_and_hold_as_many_as_there_is_room_for(
    sizes: list[int], most: int
) -> None:
    found = list(split_buckets([torch.empty(size) for size in sizes], most))
    lengths = [[tensor.numel() for tensor in bucket] for bucket in found]
    assert [size for bucket in lengths for size in bucket] == sizes
    assert all(len(bucket) == 1 or sum(bucket) <= most for bucket in lengths)
    assert all(sum(one) + other[0] > most for one, other in itertools.pairwise(lengths))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans()), min_size=1),
    st.integers(1, 20),
)
def test_every_tensor_gets_its_sum_whatever_bucket_it_is_in(
    shapes: list[tuple[int, int, bool]], most: int
) -> None:
    tensors = [
        torch.randn(rows, columns).t() if turned else torch.randn(rows, columns)
        for rows, columns, turned in shapes
    ]
    doubled, sums = [2 * tensor for tensor in tensors], Sums()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "SUM_BUCKET", most)
        patch.setattr(dist, "all_reduce", sums)
        sum_over(tensors, None, CPU)  # type: ignore[arg-type]
    assert all(torch.equal(*pair) for pair in zip(tensors, doubled, strict=True))
    assert sums.sizes == [sum(t.numel() for t in bucket) for bucket in split_buckets(tensors, most)]


def sums_of_a_step(
    parallel: ParallelConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Sums, Layout]:
    """Exchanges of sums in the gradients of four micro batches, and the layout."""
    model = dataclasses.replace(MODEL, num_layers=4, tied_embeddings=False)
    config = dataclasses.replace(
        run_config(folder, train={"micro_batch_sequences": 1}), model=model, parallel=parallel
    )
    ranks = Ranks(0, 4, CPU, *make_meshes(parallel, CPU))
    layout = build_layout(model, parallel, config.train, ranks)
    if layout.pipeline is not None:
        layout.pipeline._schedules[4] = Schedule(layout.bare)
    ids_BT = torch.arange(4 * 16).view(4, 16) % MODEL.vocab_size
    sums = Sums()
    monkeypatch.setattr(dist, "all_reduce", sums)
    accumulate_gradients(layout, ids_BT, ids_BT.roll(-1, 1), {}, torch.tensor(64), config, ranks)
    return sums, layout


@dataclasses.dataclass
class Schedule:
    """In place of one whose neighbours would have to answer."""

    model: nn.Module

    def step(self, *_: Any, **__: Any) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)


@pytest.mark.parametrize("cp", [1, 2])
def test_a_pipeline_sums_gradients_of_all_that_hold_the_same_layers_in_one_exchange(
    four_processes: None, cp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, layout = sums_of_a_step(
        ParallelConfig("ddp", 4, device="cpu", pp=2, cp=cp), tmp_path, monkeypatch
    )
    assert layout.mesh is not None and sums.groups == [layout.mesh.get_group("dp_shard")]
    assert sums.sizes == [sum(p.numel() for p in layout.bare.parameters())]


def test_a_pipeline_without_replicas_sums_nothing(
    four_processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        sums_of_a_step(ParallelConfig("ddp", 4, device="cpu", pp=4), tmp_path, monkeypatch)[0].sizes
        == []
    )


def test_groups_of_processes_that_share_weights_meet_once_in_a_step(
    four_processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, layout = sums_of_a_step(
        ParallelConfig("hsdp", 4, device="cpu", dp_shard=2), tmp_path, monkeypatch
    )
    assert layout.mesh is not None
    assert sums.groups == [layout.mesh.get_group("dp_replicate")] * (len(layout.bare.blocks) + 1)

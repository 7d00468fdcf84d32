"""Rows of the shared optimizer state: each in one process, in order, whatever the numbers."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from llm_core.optim import MOMENTS, build_optimizer, moment
from llm_core.parallel.layout import Layout
from llm_core.parallel.zero import rows_of
from tests.llm_core.small_runs import OPTIM


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@given(st.integers(1, 40), st.integers(1, 9))
def test_each_row_belongs_to_one_process_in_the_order_of_ranks(num_rows: int, size: int) -> None:
    weight = torch.arange(2 * num_rows).view(num_rows, 2)
    parts = [rows_of(weight, rank, size) for rank in range(size)]
    assert torch.equal(torch.cat(parts), weight)
    # The split that DTensor, and so a checkpoint, takes for granted.
    assert [len(part) for part in parts if len(part)] == [len(part) for part in weight.chunk(size)]


def test_shared_optimizer_updates_the_model_as_adamw_does(group_of_one: None) -> None:
    models = []
    mesh = init_device_mesh("cpu", (1, 1, 1, 1), mesh_dim_names=("pp", "dp_replicate", "dp_shard", "tp"))
    for shares in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        optimizer = build_optimizer(Layout(model, mesh=mesh, shares_state=shares), OPTIM)
        for _ in range(3):
            model(torch.ones(2, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            assert all(p.grad is None for p in model.parameters())
        models.append((model, optimizer))
    (one, adamw), (other, shared) = models
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        for name in MOMENTS:
            assert torch.equal(moment(shared, q, name), moment(adamw, p, name))

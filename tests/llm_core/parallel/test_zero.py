"""Rows of the shared optimizer state: each in one process, in order, whatever the numbers."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.build import build_optimizer
from llm_core.parallel.layout import Layout
from llm_core.parallel.zero import rows_of
from tests.support.engine.small_optimizers import ONE, copies, same, set_gradients
from tests.support.engine.small_runs import MODEL, OPTIM


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
    found = []
    mesh = init_device_mesh(
        "cpu", (1, 1, 1, 1), mesh_dim_names=("pp", "dp_replicate", "dp_shard", "tp")
    )
    for shares in (False, True):
        model = Transformer(MODEL)
        init_weights(model, seed=0)
        optimizer = build_optimizer(Layout(model, mesh=mesh, shares_state=shares), OPTIM)
        weights = dict(model.named_parameters())
        for seed in range(3):
            set_gradients(weights, seed)
            optimizer.step(OPTIM.lr, ONE, ONE)
            optimizer.zero_grad()
            assert all(p.grad is None for p in model.parameters())
        state = optimizer.state_views()
        found.append(
            copies(weights)
            | {
                k: v.full_tensor() if isinstance(v, DTensor) else v.clone()
                for k, v in state.items()
            }
        )
    assert same(*found)

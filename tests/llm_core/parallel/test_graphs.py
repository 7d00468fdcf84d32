"""Compiled blocks with tensor-parallel or 8-bit layers share one graph: the compiler gives up at the ninth."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounter
from torch.testing._internal.distributed.fake_pg import FakeStore

from llm_core.float8 import apply_float8
from llm_core.model.config import ModelConfig
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import Transformer
from llm_core.parallel.tensor import TensorShards

MODEL = ModelConfig(64, 32, 3, 4, 2, 64, 64)


@pytest.fixture
def one_of_two() -> Iterator[dist.ProcessGroup]:
    """A group whose exchanges give numbers of no meaning, at once."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


def graphs_of_blocks(model: Transformer, tokens: int) -> int:
    counter = CompileCounter()
    rope = rope_tables(torch.arange(16)[None], MODEL.head_dim, 1e4, torch.float32)
    for block in model.blocks:
        block.compile(backend=counter, dynamic=False)
        block(torch.randn(2, tokens, MODEL.dim), rope)
    return counter.frame_count


def test_blocks_of_tensor_ranks_share_a_graph(one_of_two: dist.ProcessGroup) -> None:
    model = Transformer(MODEL)
    TensorShards(one_of_two).apply(model)
    model.to_empty(device="cpu")
    assert graphs_of_blocks(model, 8) == 1


def test_blocks_of_8_bit_layers_share_a_graph() -> None:
    model = Transformer(MODEL)
    apply_float8(model, torch.device("cpu"))
    assert graphs_of_blocks(model, 16) == 1

"""Compiled blocks with tensor-parallel or 8-bit layers share their graphs, as the compiler gives up
at the ninth; and no exchange of processes is in any, where some compilers lose the gradients that
go back through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounter
from torch.testing._internal.distributed.fake_pg import FakeStore

from llm_core.model.config import ModelConfig
from llm_core.model.float8 import apply_float8
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import Transformer
from llm_core.parallel.sequence.context import Context
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


class Graphs(CompileCounter):
    """Counts graphs, and keeps the names of what they call."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        for part in module.modules():
            if isinstance(part, torch.fx.GraphModule):
                self.called |= {
                    str(node.target) for node in part.graph.nodes if node.op.startswith("call")
                }
        return super().__call__(module, inputs)


def graphs_of_blocks(model: Transformer, tokens: int) -> Graphs:
    torch.compiler.reset()
    graphs = Graphs()
    rope = rope_tables(torch.arange(16)[None], MODEL.head_dim, 1e4, torch.float32)
    for block in model.blocks:
        block.compile(backend=graphs, dynamic=False)
        block(torch.randn(2, tokens, MODEL.dim), rope)
    return graphs


def tensor_ranks(group: dist.ProcessGroup, num_layers: int, sequence: bool) -> Transformer:
    model = Transformer(dataclasses.replace(MODEL, num_layers=num_layers))
    TensorShards(group, sequence).apply(model)
    return model.to_empty(device="cpu")


@pytest.mark.parametrize("sequence", [True, False])
def test_blocks_of_tensor_ranks_share_their_graphs(
    sequence: bool, one_of_two: dist.ProcessGroup
) -> None:
    few, many = (
        graphs_of_blocks(
            tensor_ranks(one_of_two, layers, sequence), 8 if sequence else 16
        ).frame_count
        for layers in (2, 10)
    )
    assert 1 < few == many


@pytest.mark.parametrize("kind", ["sequence", "tensor", "all_gather", "ulysses", "ring"])
def test_no_exchange_is_in_a_compiled_graph(kind: str, one_of_two: dist.ProcessGroup) -> None:
    if kind in ("sequence", "tensor"):
        model = tensor_ranks(one_of_two, 2, kind == "sequence")
    else:
        model = Transformer(MODEL)
        Context(one_of_two, kind).apply(model)  # type: ignore[arg-type]
    rope_tokens = 16 if kind == "tensor" else 8
    called = (
        graphs_of_blocks(model, rope_tokens).called
        if kind in ("sequence", "tensor")
        else sliced_graphs(model).called
    )
    assert called and not [
        name for name in called if "c10d" in name or "autograd_function_apply" in name
    ]


def sliced_graphs(model: Transformer) -> Graphs:
    torch.compiler.reset()
    graphs = Graphs()
    rope = rope_tables(torch.arange(8)[None], MODEL.head_dim, 1e4, torch.float32)
    for block in model.blocks:
        block.compile(backend=graphs, dynamic=False)
        block(torch.randn(2, 8, MODEL.dim), rope)
    return graphs


def test_blocks_of_8_bit_layers_share_a_graph() -> None:
    model = Transformer(MODEL)
    apply_float8(model, torch.device("cpu"))
    assert graphs_of_blocks(model, 16).frame_count == 1

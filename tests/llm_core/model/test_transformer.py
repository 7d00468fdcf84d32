"""The model is causal, knows distances and not places, and starts from weights that a seed and
names decide."""

import ast
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from llm_core.config import ConfigError
from llm_core.model import transformer
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import Transformer
from tests.support.engine.small_runs import MODEL
from tests.support.engine.uneven_model import make_model


@settings(deadline=None, max_examples=20)
@given(
    st.integers(1, 3),
    st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    st.integers(1, 40),
    st.integers(2, 70),
    st.booleans(),
)
def test_counted_parameters_are_those_of_the_model(
    num_layers: int, heads: tuple[int, int], ffn_dim: int, vocab_size: int, tied: bool
) -> None:
    config = ModelConfig(vocab_size, 24, num_layers, *heads, ffn_dim, 32, tied_embeddings=tied)
    model = Transformer(config)
    assert sum(p.numel() for p in model.parameters()) == config.num_parameters()
    matrices = sum(
        p.numel()
        for n, p in model.named_parameters()
        if p.ndim == 2 and (tied or n != "embedding.weight")
    )
    assert matrices == config.matmul_parameters()


def test_model_code_never_imports_torch_distributed() -> None:
    # Import-linter knows external packages as wholes only, so this wall has a test instead of a
    # contract.
    files = sorted(Path(transformer.__file__).parent.glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [
                f"{names[0]}.{a.name}" if names else a.name
                for a in getattr(node, "names", [])
                if isinstance(a, ast.alias)
            ]
            assert not any(name.startswith("torch.distributed") for name in names), file


def test_later_tokens_never_change_earlier_logits() -> None:
    model = make_model(MODEL)
    ids_BT = torch.randint(0, MODEL.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    changed_BT = ids_BT.clone()
    changed_BT[:, 12] = (changed_BT[:, 12] + 1) % MODEL.vocab_size
    before, after = model(ids_BT), model(changed_BT)
    assert torch.equal(before[:, :12], after[:, :12])
    assert (before[:, 12:] - after[:, 12:]).abs().amax(-1).min() > 1e-4


def test_attention_depends_on_distances_not_on_places() -> None:
    model = make_model(MODEL, dtype=torch.float64)
    ids_BT = torch.randint(0, MODEL.vocab_size, (1, 10), generator=torch.Generator().manual_seed(0))
    here, there = model(ids_BT), model(ids_BT, torch.arange(10)[None] + 1000)
    assert (here - there).abs().max() < 1e-9
    assert (here - model(ids_BT, 2 * torch.arange(10)[None])).abs().max() > 1e-3


class Made(TorchDispatchMode):
    """Names of the operations that make a tensor of so many elements, in memory of its own."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements, self.names = elements, list[str]()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.numel() == self.elements and not operation.is_view:
            self.names.append(operation.name())
        return out


@pytest.mark.parametrize("change", [{}, {"num_kv_heads": 4}, {"qk_norm": True}])
def test_the_gradient_of_queries_keys_and_values_is_written_once(change: dict[str, Any]) -> None:
    attention = make_model(dataclasses.replace(MODEL, **change)).blocks[0].attention
    x_BTD = torch.randn(3, 11, MODEL.dim, requires_grad=True)
    out_BTD = attention(
        x_BTD, rope_tables(torch.arange(11)[None], MODEL.head_dim, MODEL.rope_theta, x_BTD.dtype)
    )
    with Made(3 * 11 * len(attention.qkv.weight)) as made:
        torch.autograd.grad(out_BTD.sum(), attention.qkv.weight)
    assert made.names == ["aten::cat"]


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    deeper = dataclasses.replace(MODEL, num_layers=MODEL.num_layers + 1, tied_embeddings=False)
    small, large, other = Transformer(MODEL), Transformer(deeper), Transformer(MODEL)
    init_weights(small, 3)
    init_weights(large, 3)
    init_weights(other, 4)
    assert torch.equal(small.blocks[1].attention.qkv.weight, large.blocks[1].attention.qkv.weight)
    assert torch.equal(small.embedding.weight, large.embedding.weight)
    assert not torch.equal(small.embedding.weight, other.embedding.weight)
    assert not torch.equal(small.blocks[0].ffn.down.weight, small.blocks[1].ffn.down.weight)


@pytest.mark.parametrize(
    "change", [{"num_heads": 5}, {"num_kv_heads": 3}, {"dim": 0}, {"dim": 36, "num_heads": 12}]
)
def test_impossible_shapes_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(MODEL, **change)

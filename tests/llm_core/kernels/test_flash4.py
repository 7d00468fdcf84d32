"""FlashAttention-4 is called as its package takes it, and refused in one line where it cannot run.

Its kernels run on GPUs only (`test_attend`); here the package's two functions are played by the
formula.
"""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.config import ConfigError
from llm_core.kernels import flash4
from llm_core.memory.config import MemoryConfig
from llm_core.memory.recompute import apply_recompute
from llm_core.model.attend import attend
from llm_core.model.masks import CAUSAL
from llm_core.model.rope import rope_tables
from llm_core.model.transformer import Block, Transformer
from tests.support.engine.small_runs import MODEL
from tests.support.engine.triton_kernels import numbers

CPU = torch.device("cpu")


def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True).transpose(1, 2)


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, return_lse: bool) -> tuple[Any, ...]:
    assert causal and return_lse
    return (
        formula(q, k, v).contiguous(),
        q.new_zeros(q.shape[0], q.shape[2], q.shape[1]).float(),
        None,
        None,
        None,
    )


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor, lse: Tensor, **options: Any
) -> None:
    del out, lse
    assert options["causal"] and not options["deterministic"]
    group, tokens = q.shape[2] // k.shape[2], q.shape[1]
    queries, grads = (x.transpose(1, 2) for x in (q, grad))
    keys, values = (x.transpose(1, 2).repeat_interleave(group, dim=1) for x in (k, v))
    scores = (queries @ keys.mT / q.shape[-1] ** 0.5).masked_fill(
        torch.ones(tokens, tokens).triu(1).bool(), -torch.inf
    )
    shares = scores.softmax(-1)
    d_shares = grads @ values.mT
    d_scores = shares * (d_shares - (d_shares * shares).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    shared = [
        x.unflatten(1, (-1, group)).sum(2) for x in (d_scores.mT @ queries, shares.mT @ grads)
    ]
    for name, value in zip(("dq", "dk", "dv"), (d_scores @ keys, *shared), strict=True):
        options[name].copy_(value.transpose(1, 2))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("flash_attn.cute.interface")
    module._flash_attn_fwd, module._flash_attn_bwd = forward, backward  # type: ignore[attr-defined]
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(flash4, "_kernels", flash4._kernels.__wrapped__)
    return module


def test_heads_and_tokens_change_places_on_the_way_in_and_back(package: ModuleType) -> None:
    del package
    found = []
    for backend in ("fa4", "reference"):
        leaves = [
            numbers(2, heads, 7, 8, seed=n).to(CPU).requires_grad_()
            for n, heads in enumerate((4, 2, 2))
        ]
        mixed = attend(*leaves, CAUSAL, backend)  # type: ignore[arg-type]
        mixed.backward(numbers(2, 4, 7, 8, seed=9).to(CPU))
        found.append([mixed.detach(), *(leaf.grad for leaf in leaves)])
    for value, expected in zip(*found, strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_compiled_block_trains_as_one_that_is_not(package: ModuleType, qk_norm: bool) -> None:
    del package
    config = dataclasses.replace(MODEL, qk_norm=qk_norm)
    rope = rope_tables(torch.arange(5)[None], config.head_dim, 1e4, torch.float32)
    blocks = [Block(config, 0) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    blocks[0].attention.backend, blocks[1].attention.backend = "reference", "fa4"
    blocks[1].compile(fullgraph=True, dynamic=False)
    for block in blocks:
        block(numbers(2, 5, config.dim).to(CPU), rope).square().sum().backward()
    for plain, compiled in zip(*(block.parameters() for block in blocks), strict=True):
        torch.testing.assert_close(compiled.grad, plain.grad)


def test_selective_recomputing_keeps_its_result(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    monkeypatch.setattr(
        package,
        "_flash_attn_fwd",
        lambda *x, **options: (runs.append(1), forward(*x, **options))[1],
    )
    model = Transformer(MODEL)
    apply_recompute(model, MemoryConfig(recompute="selective"))
    for block in model.blocks:
        block.attention.backend = "fa4"
    model.hidden(torch.zeros(1, 5, dtype=torch.long)).sum().backward()
    assert len(runs) == MODEL.num_layers


def test_heads_get_keys_of_their_own_only_where_that_was_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    cuda = torch.device("cuda")
    assert flash4.adds_up_keys_slowly(cuda, (16, 8, 128))
    assert not any(
        flash4.adds_up_keys_slowly(cuda, heads)
        for heads in ((8, 8, 128), (32, 8, 128), (14, 2, 64))
    )
    assert not flash4.adds_up_keys_slowly(CPU, (16, 8, 128))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    assert not flash4.adds_up_keys_slowly(cuda, (16, 8, 128))


def test_a_package_that_is_missing_or_fails_is_refused_in_one_line(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    flash4.check(CPU)

    def broken(*_tensors: Tensor, **_options: Any) -> None:
        raise AssertionError("Unsupported compute capability.\nmore lines")

    monkeypatch.setattr(package, "_flash_attn_bwd", broken)
    with pytest.raises(
        ConfigError,
        match=r"fa4.*\(Unsupported compute capability.\); pip install 'textmill\[fa4\]', or use",
    ):
        flash4.check(CPU)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", None)
    with pytest.raises(
        ConfigError, match="needs a GPU of Hopper or later and the package flash-attn-4"
    ):
        flash4.check(CPU)

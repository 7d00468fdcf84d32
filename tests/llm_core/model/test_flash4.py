"""FlashAttention-4 is called as its package takes it, and refused in one line where it cannot run.

Its kernels run on GPUs only (`test_attend`); here the package's two functions are played by the formula.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.config import ConfigError
from llm_core.model import flash4
from llm_core.model.attend import attend
from llm_core.model.masks import CAUSAL
from tests.llm_core.model.triton_kernels import numbers

CPU = torch.device("cpu")


def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True).transpose(1, 2)


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, return_lse: bool) -> tuple[Any, ...]:
    assert causal and return_lse
    return formula(q, k, v).contiguous(), q.new_zeros(q.shape[0], q.shape[2], q.shape[1]).float(), None, None, None


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor, lse: Tensor, *, causal: bool, deterministic: bool
) -> tuple[Tensor, ...]:
    del out, lse
    assert causal and not deterministic
    group, tokens = q.shape[2] // k.shape[2], q.shape[1]
    queries, grads = (x.transpose(1, 2) for x in (q, grad))
    keys, values = (x.transpose(1, 2).repeat_interleave(group, dim=1) for x in (k, v))
    scores = (queries @ keys.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    shares = scores.softmax(-1)
    d_shares = grads @ values.mT
    d_scores = shares * (d_shares - (d_shares * shares).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    shared = [x.unflatten(1, (-1, group)).sum(2) for x in (d_scores.mT @ queries, shares.mT @ grads)]
    return tuple(x.transpose(1, 2).contiguous() for x in (d_scores @ keys, *shared))


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
        leaves = [numbers(2, heads, 7, 8, seed=n).to(CPU).requires_grad_() for n, heads in enumerate((4, 2, 2))]
        mixed = attend(*leaves, CAUSAL, backend)  # type: ignore[arg-type]
        mixed.backward(numbers(2, 4, 7, 8, seed=9).to(CPU))
        found.append([mixed.detach(), *(leaf.grad for leaf in leaves)])
    for value, expected in zip(*found, strict=True):
        torch.testing.assert_close(value, expected)


def test_a_compiled_block_keeps_it_in_one_graph(package: ModuleType) -> None:
    del package
    leaves = [numbers(1, 2, 5, 8, seed=n).to(CPU).requires_grad_() for n in range(3)]
    compiled = torch.compile(flash4.flash4, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*leaves), flash4.flash4(*leaves))


def test_a_package_that_is_missing_or_fails_is_refused_in_one_line(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    flash4.check(CPU)

    def broken(*_tensors: Tensor, **_options: Any) -> None:
        raise AssertionError("Unsupported compute capability.\nmore lines")

    monkeypatch.setattr(package, "_flash_attn_bwd", broken)
    with pytest.raises(ConfigError, match=r"fa4.*\(Unsupported compute capability.\); pip install 'textmill\[fa4\]', or use"):
        flash4.check(CPU)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", None)
    with pytest.raises(ConfigError, match="needs a GPU of Hopper or later and the package flash-attn-4"):
        flash4.check(CPU)

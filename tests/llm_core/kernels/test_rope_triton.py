"""The kernel that takes turned queries and keys out of the fused product computes torch's split and
rotation, for any heads."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.model.attention import Attention
from llm_core.model.rope import rope_tables
from tests.support.engine.small_runs import MODEL
from tests.support.engine.triton_kernels import DEVICE, ON_GPU, kernels_of, numbers

Tables = tuple[Tensor, Tensor]

pytestmark = pytest.mark.gpu  # or Triton's interpreter, by hand


@pytest.fixture(scope="module")
def kernels() -> Any:
    return kernels_of("rope_triton")


def plain(qkv_BTGHD: Tensor, tables: Tables, own_keys: bool = False) -> tuple[Tensor, ...]:
    """What the module does without kernels, and each key and value as often as there are queries
    for it."""
    group, width = qkv_BTGHD.shape[3] - 2, qkv_BTGHD.shape[4]
    heads = group * qkv_BTGHD.shape[2]
    config = dataclasses.replace(
        MODEL, num_heads=heads, num_kv_heads=heads // group, own_head_dim=width
    )
    q, k, v = Attention(config, 0)._split(qkv_BTGHD, tables)
    return q, *(x.repeat_interleave(group, dim=1) if own_keys else x for x in (k, v))


def found(split: Any, qkv_BTGHD: Tensor, tables: Tables, seed: int) -> list[Tensor]:
    """Queries, keys, values, and the gradient of the product."""
    leaf = qkv_BTGHD.detach().requires_grad_()
    results = split(leaf, tables)
    grads = [
        numbers(*result.shape, seed=seed + n).bfloat16().to(result.dtype)
        for n, result in enumerate(results)
    ]
    torch.autograd.backward(results, grads)
    assert leaf.grad is not None
    return [*(result.detach() for result in results), leaf.grad]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(0, 6),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 20),
    st.data(),
)
def test_kernels_give_the_values_and_gradients_of_the_operations(
    kernels: Any, batch: int, tokens: int, kv_heads: int, group: int, half: int, data: st.DataObject
) -> None:
    own_positions, own_keys, seed = (
        data.draw(st.booleans()),
        data.draw(st.booleans()),
        data.draw(st.integers(0, 99)),
    )
    positions = torch.randint(
        0,
        50,
        (batch if own_positions else 1, tokens),
        generator=torch.Generator().manual_seed(seed),
    )
    qkv = numbers(batch, tokens, kv_heads, group + 2, 2 * half, seed=seed)
    tables = rope_tables(positions.to(DEVICE), 2 * half, 1e4, torch.float32)
    split = kernels.split_heads_with_own_keys if own_keys else kernels.split_heads
    operations = functools.partial(plain, own_keys=own_keys)
    exact = found(operations, qkv.double(), (tables[0].double(), tables[1].double()), seed)
    for value, expected in zip(found(split, qkv, tables, seed), exact, strict=True):
        assert value.shape == expected.shape
        torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=2e-6)


def test_strides_of_the_product_tables_and_gradients_do_not_matter(kernels: Any) -> None:
    qkv = numbers(2, 5, 3, 4, 8).transpose(2, 3)[:, :, ::2, :, :]
    tables = rope_tables(torch.arange(5, device=DEVICE)[None], 8, 1e4, torch.float32)
    rows = tuple(table.expand(2, -1, -1, -1) for table in tables)
    leaf = qkv.detach().requires_grad_()
    results = kernels.split_heads(leaf, rows)
    sum(result.sum() for result in results).backward()  # whose gradients have no strides at all
    twin = qkv.detach().requires_grad_()
    sum(result.sum() for result in plain(twin, tables)).backward()
    torch.testing.assert_close(leaf.grad, twin.grad)


def test_in_bfloat16_heads_are_turned_in_float32_and_rounded_once(kernels: Any) -> None:
    qkv = numbers(2, 7, 2, 4, 16).bfloat16()
    tables = rope_tables(torch.arange(7, device=DEVICE)[None], 16, 1e4, torch.bfloat16)
    values = found(kernels.split_heads, qkv, tables, 1)
    for value, expected in zip(values, found(plain, qkv.float(), tables, 1), strict=True):
        assert value.dtype == torch.bfloat16
        # Half a unit; the interpreter cuts off where a GPU rounds.
        torch.testing.assert_close(
            value.float(), expected, rtol=2**-8 if ON_GPU else 2**-7, atol=1e-6
        )

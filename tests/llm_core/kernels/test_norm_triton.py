"""The kernel of a sum and its norm computes torch's formula and its gradients, for any width, rows
and layout in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.model.norm import RMSNorm, add_then_norm
from tests.support.engine.triton_kernels import DEVICE, ON_GPU, kernels_of, numbers

pytestmark = pytest.mark.gpu  # or Triton's interpreter, by hand


@pytest.fixture(scope="module")
def kernels() -> Any:
    return kernels_of("norm_triton")


def inputs(
    rows: int, width: int, scale: float, seed: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """x, delta, weight, and gradients of the sum and its norm."""
    shapes = (rows, width), (rows, width), (width,), (rows, width), (rows, width)
    return [
        numbers(*shape, seed=seed + n, scale=scale if n < 2 else 1.0).to(dtype)
        for n, shape in enumerate(shapes)
    ]


def found(add: Any, x: Tensor, delta: Tensor, weight: Tensor, *grads: Tensor) -> list[Tensor]:
    """Both results and the gradients of x, delta and weight."""
    norm = RMSNorm(x.shape[-1], 1e-5).to(x.device, x.dtype)
    with torch.no_grad():
        norm.weight.copy_(weight)
    leaves = [tensor.detach().requires_grad_() for tensor in (x, delta)]
    results = add(*leaves, norm)
    torch.autograd.backward(results, grads)
    gradients = [*(leaf.grad for leaf in leaves), norm.weight.grad]
    return [tensor.detach() for tensor in (*results, *gradients) if tensor is not None]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 9), st.integers(1, 70), st.floats(0.1, 30), st.integers(0, 99))
def test_kernels_give_the_values_and_gradients_of_the_formula(
    kernels: Any, rows: int, width: int, scale: float, seed: int
) -> None:
    given_ = inputs(rows, width, scale, seed)
    exact = found(add_then_norm, *(tensor.double() for tensor in given_))
    for value, expected in zip(found(kernels.add_then_norm, *given_), exact, strict=True):
        torch.testing.assert_close(value.double(), expected, rtol=3e-5, atol=3e-6 * max(1.0, scale))


def test_a_program_of_backward_adds_up_all_its_rows(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_ = inputs(11, 24, 1.0, 0)
    exact = found(add_then_norm, *(tensor.double() for tensor in given_))
    for programs in (1, 4, 11):
        monkeypatch.setattr(kernels, "PROGRAMS", programs)
        for value, expected in zip(found(kernels.add_then_norm, *given_), exact, strict=True):
            torch.testing.assert_close(value.double(), expected, rtol=3e-5, atol=3e-6)


def test_strides_of_inputs_and_gradients_do_not_matter(kernels: Any) -> None:
    weight = numbers(40, seed=2)
    leaves = [numbers(40, 6, seed=seed).t().requires_grad_() for seed in (0, 1)]
    total, normed, _ = kernels.add_norm(*leaves, weight, 1e-5)
    (total.sum() + normed.sum()).backward()  # whose gradients have no strides at all
    ones = torch.ones(6, 40, device=DEVICE)
    expected = found(add_then_norm, *(leaf.detach() for leaf in leaves), weight, ones, ones)
    torch.testing.assert_close(leaves[0].grad, expected[2])
    torch.testing.assert_close(leaves[1].grad, expected[3])


def test_in_bfloat16_the_sum_is_rounded_before_it_is_normed_as_without_kernels(
    kernels: Any,
) -> None:
    given_ = inputs(7, 64, 3.0, 0, torch.bfloat16)
    plain = found(add_then_norm, *given_)
    # The interpreter cuts bfloat16 off where a GPU rounds: a whole unit instead of half of one, in
    # each of two roundings.
    for value, expected in zip(found(kernels.add_then_norm, *given_), plain, strict=True):
        assert value.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(
            value.float(), expected.float(), rtol=0.02 if ON_GPU else 0.05, atol=0.05
        )


def test_a_stream_wider_than_its_summand_keeps_its_numbers(kernels: Any) -> None:
    x, delta, weight, *grads = inputs(5, 32, 1.0, 0)
    results = found(kernels.add_then_norm, x, delta.half(), weight, *grads)
    assert [tensor.dtype for tensor in results] == [torch.float32] * 3 + [
        torch.float16,
        torch.float32,
    ]
    torch.testing.assert_close(results[0], x + delta.half().float())

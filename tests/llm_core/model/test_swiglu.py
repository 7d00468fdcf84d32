"""The kernels of silu(gate) * up compute torch's formula and its gradient, for any blocks and
layout in memory.

On a GPU as they are; on a CPU by Triton's interpreter, where the package is installed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.model.feed_forward import SwiGLU, gated
from tests.support.engine.small_runs import MODEL
from tests.support.engine.triton_kernels import DEVICE, ON_GPU, kernels_of, numbers

pytestmark = pytest.mark.gpu  # or Triton's interpreter, by hand


@pytest.fixture(scope="module")
def kernels() -> Any:
    return kernels_of("swiglu_triton")


def exact(gate_up: Tensor, grad: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(result, gradient of gate_up) of the formula in float64."""
    leaf = gate_up.detach().double().requires_grad_()
    result = gated(leaf, block)
    result.backward(grad.double())
    assert leaf.grad is not None
    return result.detach(), leaf.grad


def found(kernels: Any, gate_up: Tensor, grad: Tensor, block: int) -> tuple[Tensor, Tensor]:
    leaf = gate_up.detach().requires_grad_()
    result = kernels.gated(leaf, block)
    result.backward(grad)
    assert leaf.grad is not None and result.dtype == leaf.grad.dtype == gate_up.dtype
    return result.detach(), leaf.grad


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 9), st.integers(1, 4), st.integers(1, 70), st.floats(0.1, 30), st.integers(0, 99)
)
def test_kernels_give_the_values_and_gradients_of_the_formula(
    kernels: Any, tokens: int, blocks: int, block: int, scale: float, seed: int
) -> None:
    gate_up = numbers(tokens, 2 * blocks * block, seed=seed, scale=scale)
    grad = numbers(tokens, blocks * block, seed=seed + 1)
    for value, expected in zip(
        found(kernels, gate_up, grad, block), exact(gate_up, grad, block), strict=True
    ):
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6 * max(1.0, scale))


@pytest.mark.parametrize(("blocks", "block"), [(1, 1500), (2, 1024), (16, 352)])
def test_blocks_wider_than_a_program_are_whole(kernels: Any, blocks: int, block: int) -> None:
    gate_up, grad = numbers(3, 2 * blocks * block), numbers(3, blocks * block, seed=1)
    for value, expected in zip(
        found(kernels, gate_up, grad, block), exact(gate_up, grad, block), strict=True
    ):
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)


def test_strides_of_inputs_and_gradients_do_not_matter(kernels: Any) -> None:
    gate_up = numbers(48, 2, 5).transpose(0, 2)
    leaf = gate_up.detach().requires_grad_()
    kernels.gated(leaf, 8).sum().backward()  # whose gradient has no strides at all
    _, expected = exact(gate_up, torch.ones(5, 2, 24, device=DEVICE), 8)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_each_number_is_rounded_once(kernels: Any, dtype: torch.dtype) -> None:
    gate_up, grad = numbers(7, 2 * 40).to(dtype), numbers(7, 40, seed=1).to(dtype)
    for value, expected in zip(
        found(kernels, gate_up, grad, 20), exact(gate_up, grad, 20), strict=True
    ):
        # The interpreter cuts bfloat16 off where a GPU rounds: a whole unit instead of half of one.
        units = 1.01 if dtype == torch.bfloat16 and not ON_GPU else 0.505
        torch.testing.assert_close(
            value.double(), expected, rtol=units * torch.finfo(dtype).eps, atol=1e-6
        )


def test_a_compiled_layer_keeps_the_kernels_in_one_graph(kernels: Any) -> None:
    layers = [SwiGLU(MODEL).to(DEVICE) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].gated = kernels.gated
    layers[1].compile(fullgraph=True, dynamic=False, backend="inductor" if ON_GPU else "aot_eager")
    inputs = [numbers(2, 5, MODEL.dim).requires_grad_() for _ in layers]
    for layer, x in zip(layers, inputs, strict=True):
        layer(x).square().sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    torch.testing.assert_close(layers[1].gate_up.weight.grad, layers[0].gate_up.weight.grad)

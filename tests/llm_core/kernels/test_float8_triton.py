"""The kernel that rounds to 8 bits gives torch's numbers, straight and turned, for any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from llm_core.kernels import float8
from llm_core.model.config import ModelConfig
from llm_core.model.float8 import Float8Linear, apply_float8
from llm_core.model.transformer import Transformer
from tests.support.engine.triton_kernels import DEVICE, ON_GPU, kernels_of, numbers

pytestmark = pytest.mark.gpu  # or Triton's interpreter, by hand


@pytest.fixture(scope="module")
def kernels() -> Any:
    return kernels_of("float8_triton")


@settings(deadline=None, max_examples=20)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.sampled_from([float8.VALUES, float8.GRADIENTS]),
    st.booleans(),
    st.integers(0, 9),
)
def test_the_kernel_gives_the_numbers_of_torch_and_their_transpose(
    kernels: Any, rows: int, columns: int, dtype: torch.dtype, is_whole: bool, seed: int
) -> None:
    if is_whole:  # multiples of 16, which are read several at a time
        rows, columns = rows // 16 * 16 + 16, columns // 16 * 16 + 16
    x = numbers(rows, columns, seed=seed, scale=3.0).bfloat16()
    x8, turned, _ = kernels.quantize(x, dtype)
    expected = float8.quantize(x, dtype)[0].float()
    assert x8.dtype == turned.dtype == dtype
    assert torch.equal(turned.float(), x8.float().T)
    # The interpreter rounds halves up, and forgets to carry where a fraction becomes the next power
    # of two.
    sure = (
        torch.full_like(expected, True, dtype=torch.bool)
        if ON_GPU
        else expected.frexp().mantissa.abs() != 0.5
    )
    # The interpreter also rounds the smallest numbers otherwise.
    unit = 0 if ON_GPU else torch.finfo(dtype).eps
    torch.testing.assert_close(
        x8.float()[sure], expected[sure], rtol=unit, atol=unit * torch.finfo(dtype).smallest_normal
    )


def test_halves_between_two_numbers_go_where_torch_puts_them(kernels: Any) -> None:
    if not ON_GPU:
        pytest.skip("the interpreter rounds halves up")
    # 0.80859375 is three quarters of the largest: 336, between 320 and 352. Times 1 / scale it is a
    # little off.
    for largest, half in ((1.078125, 0.80859375), (1.1875, 0.890625), (1.296875, 0.97265625)):
        x = torch.tensor([[largest, half]], device=DEVICE, dtype=torch.bfloat16)
        assert torch.equal(
            kernels.quantize(x, float8.VALUES)[0].float(),
            float8.quantize(x, float8.VALUES)[0].float(),
        )


@pytest.mark.parametrize("shape", [(512, 384), (48, 2048), *([(16384, 2048)] if ON_GPU else [])])
def test_weights_in_float32_are_turned_like_others(kernels: Any, shape: tuple[int, int]) -> None:
    weight = numbers(*shape)
    x8, turned, scale = kernels.quantize(weight, float8.VALUES)
    assert torch.equal(turned.float(), x8.float().T)
    # Rounded twice, to bfloat16 and to 8 bits; the interpreter forgets to carry.
    assert float((x8.float() * scale - weight).norm() / weight.norm()) < (0.03 if ON_GPU else 0.1)


def test_a_layer_with_the_kernel_gives_the_products_of_one_without(kernels: Any) -> None:
    if not ON_GPU:
        pytest.skip("the interpreter rounds otherwise")
    found = []
    for quantize in (float8.quantize, kernels.quantize):
        torch.manual_seed(0)
        layer = Float8Linear(nn.Linear(256, 512).to(DEVICE), quantize)
        x = numbers(384, 256).bfloat16().requires_grad_()
        y = layer(x)
        y.backward(numbers(384, 512, seed=1).bfloat16())
        found.append([y.detach(), x.grad, layer.weight.grad])
    for value, expected in zip(*found, strict=True):
        assert float((value - expected).float().norm() / expected.float().norm()) < 0.02


def small_model(kernels: Any, **options: bool) -> Transformer:
    """With layers of 8 bits and gates in Triton."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(64, 32, 2, 4, 2, 64, 64))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.1)
    model.stream_dtype = torch.bfloat16
    gates = kernels_of("swiglu_triton").gated
    for block in model.own_blocks:
        block.ffn.gated = gates
    apply_float8(model, DEVICE, "triton", **options)
    return model.to(DEVICE)


def loss_and_gradients(model: Transformer) -> list[torch.Tensor]:
    ids = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    model.zero_grad()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        loss = model(ids[:, :-1], targets_BT=ids[:, 1:])[0]
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for weight in model.parameters())]  # type: ignore[union-attr]


def test_gates_that_measure_give_the_bits_of_layers_by_themselves(kernels: Any) -> None:
    found = [loss_and_gradients(small_model(kernels, joins_gates=on)) for on in (False, True)]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_gates_find_the_largest_of_what_they_write(kernels: Any) -> None:
    gates, largest = kernels_of("swiglu_triton"), kernels_of("largest_triton")
    inner, grad = numbers(7, 96, scale=3.0).bfloat16(), numbers(7, 48, seed=1).bfloat16()
    for bad in (0.5, float("inf"), float("nan")):
        inner[3, 5] = bad
        for out, parts in (
            gates.gated_measured(inner, 16),
            gates.gradient_measured(inner, grad, 16),
        ):
            expected = out.abs().amax().float()
            torch.testing.assert_close(
                largest.largest_of(parts), expected, rtol=0, atol=0, equal_nan=True
            )


def test_what_is_no_number_stays_none(kernels: Any) -> None:
    for bad in (float("nan"), float("inf")):
        x8, turned, scale = kernels.quantize(
            torch.tensor([[1.0, bad]], device=DEVICE), float8.VALUES
        )
        assert not bool(torch.isfinite(x8.float() * scale).all()) and not bool(
            torch.isfinite(turned.float() * scale).all()
        )


def test_the_transpose_of_a_tensor_is_taken_as_any_other(kernels: Any) -> None:
    x = numbers(40, 24).t()
    x8, turned, _ = kernels.quantize(x, float8.VALUES)
    again, _, _ = kernels.quantize(x.contiguous(), float8.VALUES)
    assert torch.equal(x8.float(), again.float()) and torch.equal(turned.float(), again.float().T)

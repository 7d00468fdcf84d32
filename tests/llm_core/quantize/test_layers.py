"""A layer over rounded weights gives the product with the weight that they stand for."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.quantize import on_cpu
from llm_core.quantize.formats import FORMATS, Format, Rounded, restore, round_weight
from llm_core.quantize.layers import RoundedEmbedding, RoundedLinear

OF_X = {"int8": 1 / 127, "int4": 1 / 256, "fp8": 1e-6}
"""Largest rounding of x and of the sums, as a share of the largest magnitude of a row of x."""


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error_bound(x_MK: Tensor, weight_NK: Tensor, share: float) -> Tensor:
    """Of each sum, if every number of x is off by `share` of its row's largest."""
    return share * x_MK.abs().amax(1)[:, None] * weight_NK.abs().sum(1) + 1e-6


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 40),
    st.integers(1, 150),
    st.integers(1, 150),
    st.sampled_from(FORMATS),
    st.booleans(),
)
def test_a_layer_gives_the_product_in_float64_within_the_rounding_of_its_input(
    rows: int, outputs: int, inputs: int, format: Format, has_bias: bool
) -> None:
    rounded = round_weight(random(outputs, inputs, seed=1), format)
    bias = random(outputs, seed=2) if has_bias else None
    layer, x_MK = RoundedLinear(rounded, bias), random(rows, inputs, seed=3)
    weight_NK = restore(rounded, torch.float64)
    product = x_MK.double() @ weight_NK.t()
    expected = product + (0 if bias is None else bias.double())
    found = layer(x_MK)
    assert found.dtype == torch.float32 and found.shape == (rows, outputs)
    # int4's kernel also rounds its sums.
    bound = error_bound(x_MK.double(), weight_NK, OF_X[format]) + product.abs() * (
        1 / 256 if format == "int4" else 0
    )
    assert bool(((found - expected).abs() <= bound).all())
    exact = RoundedLinear(rounded, None if bias is None else bias.double())(x_MK.double())
    assert float((exact - expected).abs().sum()) < 1e-9


@pytest.mark.parametrize("format", FORMATS)
def test_rows_do_not_depend_on_the_rows_beside_them(format: Format) -> None:
    layer, x_MK = RoundedLinear(round_weight(random(70, 96), format)), random(33, 96, seed=1)
    x_MK[5] *= 1000
    together = layer(x_MK)
    alone = torch.cat([layer(row[None]) for row in x_MK])
    if format == "int8":  # sums of whole numbers
        assert torch.equal(together, alone)
    torch.testing.assert_close(together, alone, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_zeros_stay_zeros_and_what_is_no_number_stays_none(format: Format) -> None:
    layer, x_MK = RoundedLinear(round_weight(random(20, 64), format)), random(3, 64)
    x_MK[1], x_MK[2, 7] = 0, float("nan")
    y_MN = layer(x_MK)
    assert bool(y_MN[0].isfinite().all()) and not bool(y_MN[1].any())
    assert bool(y_MN[2].isnan().all())


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 150), st.integers(1, 150), st.sampled_from(FORMATS))
def test_numbers_come_back_from_the_order_of_the_processor(
    outputs: int, inputs: int, format: Format
) -> None:
    rounded = round_weight(random(outputs, inputs), format)
    layer = RoundedLinear(rounded)
    layer(random(2, inputs))
    same(layer.stored, rounded)


def same(found: Rounded, expected: Rounded) -> None:
    assert (found.format, found.num_inputs) == (expected.format, expected.num_inputs)
    for name, tensor in expected.tensors().items():
        assert torch.equal(found.tensors()[name].float(), tensor.float())


@pytest.mark.parametrize("format", FORMATS)
def test_casting_a_layer_leaves_its_numbers_and_scales(format: Format) -> None:
    rounded = round_weight(random(24, 64), format)
    layer = RoundedLinear(rounded, random(24)).to(torch.bfloat16)
    same(layer.stored, rounded)
    assert layer.bias is not None and layer.bias.dtype == torch.bfloat16
    assert layer(random(2, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16
    copied = copy.deepcopy(layer)
    assert torch.equal(copied(random(2, 64).bfloat16()), layer(random(2, 64).bfloat16()))


@pytest.mark.parametrize("format", FORMATS)
def test_without_a_kernel_the_weight_is_restored(
    format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cpu, "order", lambda _: None)
    rounded, x_MK = round_weight(random(24, 70), format), random(5, 70)
    expected = x_MK.double() @ restore(rounded, torch.float64).t()
    torch.testing.assert_close(RoundedLinear(rounded)(x_MK).double(), expected, rtol=0, atol=1e-4)


def test_whole_numbers_are_multiplied_exactly_at_their_extremes() -> None:
    most = on_cpu.most_of_x()
    if most is None:
        pytest.skip("torch has no FBGEMM for this processor")
    numbers = torch.full((3, 4096), 127, dtype=torch.int8)
    layer = RoundedLinear(Rounded("int8", 4096, numbers, torch.ones(3)))
    for sign in (1, -1):
        x_MK = sign * torch.full((2, 4096), float(most))
        assert bool((layer(x_MK) == sign * most * 127 * 4096).all())


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_rows_of_a_table_are_those_of_its_weight(format: Format) -> None:
    rounded = round_weight(random(30, 16), format)
    table = RoundedLinear(rounded)
    embedding, ids = RoundedEmbedding(table, torch.float32), torch.tensor([[3, 29], [0, 3]])
    assert torch.equal(embedding(ids), restore(rounded)[ids])
    table(random(1, 16))  # may order the table for products
    assert torch.equal(embedding(ids), restore(rounded)[ids])
    assert embedding.to(torch.bfloat16)(ids).dtype == torch.bfloat16

"""Kernels that multiply by rounded weights give the product with the weight that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.quantize.formats import FORMATS, GROUP, Format, restore, round_weight
from tests.support.engine.triton_kernels import DEVICE, ON_GPU, kernels_of, numbers

pytestmark = pytest.mark.gpu  # or Triton's interpreter, by hand

MANY = [300, 1000, 2048] if ON_GPU else [70]


@pytest.fixture(scope="module")
def kernels() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        module = kernels_of("quantized_triton")
        if not ON_GPU:  # sums and ranges also look where they are called
            patch.setenv("TRITON_INTERPRET", "1")
        yield module


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([1, 1, 2, 7, 16, 33, 64, *MANY]),
    st.integers(1, 200),
    st.integers(1, 300),
    st.sampled_from(FORMATS),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 9),
)
def test_products_are_those_in_float64(
    kernels: Any,
    rows: int,
    outputs: int,
    inputs: int,
    format: Format,
    dtype: torch.dtype,
    seed: int,
) -> None:
    if not ON_GPU and dtype == torch.bfloat16:
        dtype = torch.float32  # NumPy has no bfloat16
    rounded = round_weight(numbers(outputs, inputs, seed=seed), format)
    x_MK = numbers(rows, inputs, seed=seed + 1).to(dtype)
    found = kernels.product(x_MK, rounded)
    assert found.dtype == dtype
    weight_NK = restore(rounded, torch.float64)
    expected = x_MK.double() @ weight_NK.t()
    # Rounding of the result, or of the weight for many rows, and of sums in float32.
    size = x_MK.double().norm(dim=1)[:, None] * weight_NK.norm(dim=1)
    unit = torch.finfo(dtype).eps
    assert bool(((found.double() - expected).abs() <= (unit + 1e-5) * size).all())


def test_a_group_of_the_kernels_is_that_of_the_format(kernels: Any) -> None:
    assert kernels.GROUP.value == GROUP


@pytest.mark.parametrize("format", FORMATS)
def test_no_rows_give_no_rows(kernels: Any, format: Format) -> None:
    rounded = round_weight(numbers(8, 64), format)
    assert kernels.product(torch.empty(0, 64, device=DEVICE), rounded).shape == (0, 8)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_that_a_program_pads_do_not_reach_others(kernels: Any, format: Format) -> None:
    rounded, x_MK = round_weight(numbers(40, 128), format), numbers(3, 128, seed=1)
    x_MK[2] = float("nan")
    found = kernels.product(x_MK, rounded)
    assert bool(found[:2].isfinite().all()) and bool(found[2].isnan().all())

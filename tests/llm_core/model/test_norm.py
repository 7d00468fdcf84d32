"""The norm that is written out for CPUs is torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from llm_core.model.norm import RMSNorm
from tests.support.engine.live_bytes import LiveBytes


@given(st.lists(st.integers(1, 6), max_size=4), st.integers(1, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_values_are_those_of_torch_to_the_bit_and_gradients_within_rounding(
    shape: list[int], dim: int, turned: bool
) -> None:
    torch.manual_seed(dim)
    norm = RMSNorm(dim, 1e-5).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(*shape, dim, dtype=torch.float64)
    x = (x.transpose(0, -2) if turned and shape else x).requires_grad_()
    gradient = torch.randn(x.shape, dtype=torch.float64)
    expected, found = F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps), norm(x)
    assert torch.equal(expected, found)
    pairs = zip(
        *(torch.autograd.grad(out, (x, norm.weight), gradient) for out in (expected, found)),
        strict=True,
    )
    for wanted, got in pairs:
        assert (wanted - got).abs().max() <= 1e-13 * max(1, wanted.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backward_takes_less_memory_than_the_rules_of_torch(dtype: torch.dtype) -> None:
    x, norm = torch.randn(4, 8, 64, dtype=dtype, requires_grad=True), RMSNorm(64, 1e-5).to(dtype)
    peaks = []
    for out in (F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps), norm(x)):
        with LiveBytes() as live:
            torch.autograd.grad(out.sum(), (x, norm.weight))
        peaks.append(live.peak)
    assert peaks[1] < peaks[0]


def test_gradients_are_the_same_where_backward_runs_under_autocast() -> None:
    x, norm = torch.randn(4, 8, 64, requires_grad=True), RMSNorm(64, 1e-5)
    torch.nn.init.normal_(norm.weight)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            found.append(torch.autograd.grad(norm(x).square().sum(), (x, norm.weight)))
    assert all(torch.equal(plain, cast) for plain, cast in zip(*found, strict=True))

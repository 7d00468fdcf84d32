"""Rounding is to the nearest number of a format, and what is stored restores exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.quantize.formats import (
    FORMATS,
    GROUP,
    Format,
    pack,
    restore,
    round_weight,
    stored_shapes,
    unpack,
)

SIZES = st.integers(1, 200)


def weights(rows: int, columns: int, seed: int) -> Tensor:
    """Rows of very different sizes, one of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    weight *= torch.randn(rows, 1, generator=generator).mul(3).exp()
    weight[seed % rows] = 0
    return weight


def steps(weight: Tensor, format: Format) -> Tensor:
    """Half the distance between the two numbers of the format that a weight lies between."""
    rounded = round_weight(weight, format)
    if format == "int8":
        return rounded.scale[:, None] / 2
    if format == "int4":
        scale, offset = rounded.scale.float(), rounded.offset
        assert offset is not None
        # The offset is rounded to bfloat16, and moves the ends of the range by as much.
        half = scale / 2 + scale * 16 / 512 + offset.float().abs() / 256
        return half.repeat_interleave(GROUP, 1)[:, : weight.shape[1]]
    # Three bits of fraction; below the smallest power of two numbers are evenly spaced.
    scaled = (weight / rounded.scale[:, None]).abs()
    return 2.0 ** (scaled.log2().floor().clamp(min=-6) - 4) * rounded.scale[:, None]


@settings(deadline=None, max_examples=60)
@given(SIZES, SIZES, st.sampled_from(FORMATS), st.integers(0, 99))
def test_a_restored_weight_is_within_half_a_step(
    rows: int, columns: int, format: Format, seed: int
) -> None:
    weight = weights(rows, columns, seed)
    error = (restore(round_weight(weight, format), torch.float64) - weight).abs()
    assert bool((error <= steps(weight, format) * (1 + 1e-5)).all())


@settings(deadline=None, max_examples=60)
@given(SIZES, SIZES, st.sampled_from(FORMATS), st.integers(0, 99))
def test_what_is_stored_has_the_shapes_that_are_said(
    rows: int, columns: int, format: Format, seed: int
) -> None:
    rounded = round_weight(weights(rows, columns, seed), format)
    found = {name: (tuple(t.shape), t.dtype) for name, t in rounded.tensors().items()}
    assert found == stored_shapes(format, rows, columns)
    assert restore(rounded).shape == (rows, columns)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_packed_numbers_come_back(rows: int, groups: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-8, 8, (rows, groups, GROUP), generator=generator, dtype=torch.int8)
    assert torch.equal(unpack(pack(numbers)), numbers)


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_rounding_again_changes_nothing(format: Format) -> None:
    once = restore(round_weight(weights(50, 130, 1), format))
    assert torch.equal(restore(round_weight(once, format)), once)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(format: Format, bad: float) -> None:
    weight = weights(4, 8, 1)
    weight[2, 3] = bad
    with pytest.raises(ConfigError, match="infinite or undefined"):
        round_weight(weight, format)


def test_bits_of_a_weight_are_those_of_the_table() -> None:
    weight = weights(64, 1024, 0)
    for format, bits in (("int8", 8), ("int4", 4.5), ("fp8", 8)):
        of_rows = 0 if format == "int4" else 64 * 4
        assert round_weight(weight, format).num_bytes - of_rows == weight.numel() * bits / 8


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_in_pieces_of_rows_gives_the_same_numbers(
    format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = round_weight(weights(50, 130, 1), format).tensors()
    monkeypatch.setattr("llm_core.quantize.formats.PIECE_ROWS", 7)
    pieces = round_weight(weights(50, 130, 1), format).tensors()
    assert all(torch.equal(pieces[name].float(), tensor.float()) for name, tensor in whole.items())

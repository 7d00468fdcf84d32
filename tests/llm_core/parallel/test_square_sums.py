"""Norms of tens of millions of numbers keep the digits of float32, whatever the numbers and
wherever a layout cuts them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from llm_core.model.transformer import Transformer
from llm_core.optim.muon import orthogonalise
from llm_core.parallel.gradients import gradient_norm
from llm_core.parallel.layout import Layout
from llm_core.parallel.square_sums import RUN, square_sum
from tests.support.engine.small_runs import MODEL

MANY = 17 * 2**20


def exact(tensor: Tensor) -> float:
    return float(sum(part.double().square().sum() for part in tensor.reshape(-1).split(1 << 22)))


def numbers(kind: str, count: int) -> Tensor:
    normal = torch.randn(count, generator=torch.Generator().manual_seed(0))
    return {
        "normal": normal,
        "alike": torch.full((count,), 3.3e-5),
        "heavy": normal.exp().square(),
    }[kind]


def test_numbers_of_16_bits_have_a_norm_of_32() -> None:
    short = numbers("normal", 5 * RUN + 3).bfloat16()
    assert float(square_sum([short, short[:1]])) == pytest.approx(
        exact(short) + exact(short[:1]), rel=1e-6
    )


@pytest.mark.parametrize("kind", ["normal", "alike", "heavy"])
def test_the_gradient_norm_of_millions_of_numbers_is_that_of_float64(kind: str) -> None:
    model = Transformer(
        dataclasses.replace(MODEL, vocab_size=MANY // MODEL.dim, tied_embeddings=True)
    )
    grad = numbers(kind, MANY).view_as(model.embedding.weight)
    model.embedding.weight.grad = grad
    norm = gradient_norm(Layout(model))
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(exact(grad) ** 0.5, rel=1e-6)


def test_pieces_of_a_tensor_have_its_square_sum() -> None:
    whole = numbers("heavy", MANY)
    pieces = whole.split(MANY // 7)
    assert float(square_sum([whole])) == pytest.approx(float(square_sum(pieces)), rel=1e-6)


@given(
    st.lists(st.integers(0, 3 * RUN), min_size=1, max_size=4),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_every_element_counts_once_for_any_sizes(sizes: list[int], dtype: torch.dtype) -> None:
    tensors = [torch.arange(size, dtype=dtype) for size in sizes]
    found = square_sum(tensors)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(sum(map(exact, tensors)), rel=1e-6)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_one_broken_element_breaks_the_sum(broken: float) -> None:
    tensor = torch.ones(3 * RUN)
    tensor[-1] = broken
    assert not torch.isfinite(square_sum([torch.ones(2), tensor]))


def test_a_strided_tensor_has_the_square_sum_of_its_elements() -> None:
    tensor = numbers("normal", 6 * RUN).view(6, RUN)
    assert float(square_sum([tensor[:, ::3]])) == pytest.approx(
        exact(tensor[:, ::3].contiguous()), rel=1e-6
    )


def test_a_matrix_of_millions_begins_muon_with_norm_one() -> None:
    matrix = numbers("alike", MANY).view(1, 17 * 2**10, -1)
    assert float(square_sum([orthogonalise(matrix, 0, in_bfloat16=False)])) == pytest.approx(
        1, rel=1e-5
    )

"""A loss taken in chunks is that of whole logits, and no more than a chunk of them ever exists."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from llm_core.data.batch import IGNORED
from llm_core.memory.chunked_loss import ChunkedHeadLoss
from llm_core.model.loss import token_losses
from tests.support.engine.live_bytes import LiveBytes

DIM, VOCAB = 8, 51
TOLERANCE = 1e-12


def whole(
    head: nn.Module, hidden_BTD: Tensor, targets_BT: Tensor, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    learnt_BT, losses_BT = token_losses(head(hidden_BTD), targets_BT, z_loss)
    return learnt_BT.sum(), losses_BT


def inputs(
    rows: int = 3, tokens: int = 7, dtype: torch.dtype = torch.float64
) -> tuple[nn.Linear, Tensor, Tensor]:
    """(head, hidden_BTD, targets_BT) of which the first row counts for nothing, and more here and
    there."""
    torch.manual_seed(rows * tokens)
    head = nn.Linear(DIM, VOCAB, bias=False, dtype=dtype)
    targets_BT = torch.randint(0, VOCAB, (rows, tokens))
    targets_BT[torch.rand(rows, tokens) < 0.3] = IGNORED
    targets_BT[0] = IGNORED
    return head, torch.randn(rows, tokens, DIM, dtype=dtype, requires_grad=True), targets_BT


def gradients(
    loss: object, head: nn.Module, hidden: Tensor, targets: Tensor, factor: float = 0.25
) -> list[Tensor]:
    """[total, losses, gradient of hidden, gradients of weights …]"""
    total, losses = loss(head, hidden, targets)  # type: ignore[operator]
    return [
        total.detach(),
        losses,
        *torch.autograd.grad(total * factor, (hidden, *head.parameters())),
    ]


def worst(expected: list[Tensor], found: list[Tensor]) -> float:
    assert [value.shape for value in expected] == [value.shape for value in found]
    return max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.sampled_from([0.0, 0.3]))
@settings(max_examples=40, deadline=None)
def test_chunked_loss_and_gradients_are_those_of_whole_logits(
    rows: int, tokens: int, chunk: int, z_loss: float
) -> None:
    values = inputs(rows, tokens)
    chunked = ChunkedHeadLoss(chunk, partial(token_losses, z_loss=z_loss))
    expected = gradients(partial(whole, z_loss=z_loss), *values)
    assert worst(expected, gradients(chunked, *values)) < TOLERANCE


@pytest.mark.parametrize("bias", [False, True])
def test_losses_without_gradients_are_those_of_whole_logits(bias: bool) -> None:
    _, hidden, targets = inputs()
    head = nn.Linear(DIM, VOCAB, bias, dtype=torch.float64)
    with torch.no_grad():
        assert (
            worst(
                list(whole(head, hidden, targets)), list(ChunkedHeadLoss(4)(head, hidden, targets))
            )
            < TOLERANCE
        )


@pytest.mark.parametrize("chunk", [1, 6, 10])
def test_no_tensor_holds_more_than_a_chunk_of_logits(chunk: int) -> None:
    head, hidden, targets = inputs(rows=16, tokens=16)
    with LiveBytes([hidden, *head.parameters()]) as plain:
        gradients(whole, head, hidden, targets)
    with LiveBytes([hidden, *head.parameters()]) as chunked:
        gradients(ChunkedHeadLoss(chunk), head, hidden, targets)
    with LiveBytes() as validating, torch.no_grad():
        ChunkedHeadLoss(chunk)(head, hidden, targets)
    assert plain.largest == 256 * VOCAB
    # Gradients of the residual stream and of the head are the only others of any size.
    assert chunked.largest <= max(chunk * VOCAB, 256 * DIM, VOCAB * DIM)
    assert validating.largest <= max(chunk * VOCAB, 256 * DIM)
    assert chunked.peak < plain.peak / 3


def test_every_backward_pass_through_a_kept_graph_gives_the_whole_gradient() -> None:
    head, hidden, targets = inputs()
    expected = gradients(whole, head, hidden, targets, factor=0.25 + 0.25 + 3.0)[2:]
    total, _ = ChunkedHeadLoss(5)(head, hidden, targets)
    for factor, keep in ((0.25, True), (0.25, True), (3.0, False)):
        (total * factor).backward(retain_graph=keep)
    found = [hidden.grad, *(p.grad for p in head.parameters())]
    assert worst(expected, [grad for grad in found if grad is not None]) < TOLERANCE


def test_gradients_of_a_tied_head_and_of_micro_batches_add_up() -> None:
    head, _, targets = inputs()
    ids = torch.randint(0, VOCAB, targets.shape)
    found = []
    for loss in (whole, ChunkedHeadLoss(4)):
        embedding, tied = nn.Embedding(VOCAB, DIM, dtype=torch.float64), copy.deepcopy(head)
        embedding.weight = tied.weight
        for row in range(len(ids)):
            loss(tied, embedding(ids[row : row + 1]), targets[row : row + 1])[0].div(3).backward()
        assert tied.weight.grad is not None
        found.append(tied.weight.grad)
    assert worst(found[:1], found[1:]) < TOLERANCE


def test_frozen_weights_get_no_gradient_and_others_do() -> None:
    head, hidden, targets = inputs()
    head.requires_grad_(False)
    total, _ = ChunkedHeadLoss(4)(head, hidden, targets)
    total.backward()
    expected = torch.autograd.grad(whole(head, hidden, targets)[0], hidden)
    assert hidden.grad is not None and worst(list(expected), [hidden.grad]) < TOLERANCE
    assert head.weight.grad is None


def test_bfloat16_products_follow_those_of_whole_logits_and_add_up_in_float32() -> None:
    head, hidden, targets = inputs(rows=8, tokens=16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(whole, head, hidden, targets)
        found = gradients(ChunkedHeadLoss(3), head, hidden, targets)
    assert all(value.dtype == torch.float32 for value in found)
    exact = gradients(whole, head, hidden, targets)
    for a, b, c in zip(exact, expected, found, strict=True):
        rounding = (b - a).norm() / a.norm()
        assert (c - a).norm() / a.norm() < 1.5 * rounding + 1e-6


def test_a_cross_entropy_that_is_given_takes_the_place_of_ours() -> None:
    head, hidden, targets = inputs()

    def softer(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return token_losses(logits / 2, targets)

    def plain(head: nn.Module, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        learnt, losses = softer(head(hidden), targets)
        return learnt.sum(), losses

    assert (
        worst(
            gradients(plain, head, hidden, targets),
            gradients(ChunkedHeadLoss(4, softer), head, hidden, targets),
        )
        < TOLERANCE
    )

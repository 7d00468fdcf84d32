"""The loss of next tokens is torch's cross-entropy, and its gradient takes the place of what it was
made from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from llm_core.data.batch import IGNORED
from llm_core.model.loss import token_losses
from tests.support.engine.live_bytes import LiveBytes


def inputs(
    rows: int, tokens: int, vocab: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """(logits_BTV, targets_BT of which some do not count, gradient_BT of the losses)."""
    generator = torch.Generator().manual_seed(rows * tokens * vocab)
    logits_BTV = torch.randn(
        rows, tokens, vocab, generator=generator, dtype=dtype, requires_grad=True
    )
    targets_BT = torch.randint(vocab, (rows, tokens), generator=generator)
    targets_BT[torch.rand(rows, tokens, generator=generator) < 0.3] = IGNORED
    return logits_BTV, targets_BT, torch.rand(rows, tokens, generator=generator, dtype=dtype)


def plain(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    losses_N = F.cross_entropy(
        logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses_N.view_as(targets_BT)


def with_squares(logits_BTV: Tensor, targets_BT: Tensor, z_loss: float) -> Tensor:
    """The formula of PaLM, section 5."""
    squares_BT = logits_BTV.exp().sum(-1).log() ** 2
    return plain(logits_BTV, targets_BT) + z_loss * squares_BT * (targets_BT != IGNORED)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_losses_and_gradients_are_those_of_torch(rows: int, tokens: int, vocab: int) -> None:
    logits_BTV, targets_BT, gradient_BT = inputs(rows, tokens, vocab)
    expected, (found, losses_BT) = (
        plain(logits_BTV, targets_BT),
        token_losses(logits_BTV, targets_BT),
    )
    assert torch.equal(expected, found) and torch.equal(expected, losses_BT)
    wanted, got = (
        torch.autograd.grad(losses, logits_BTV, gradient_BT)[0] for losses in (expected, found)
    )
    assert (wanted - got).abs().max() < 1e-15


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 60), st.floats(0, 3))
@settings(max_examples=40, deadline=None)
def test_the_normalizer_is_learnt_with_its_weight_and_not_reported(
    rows: int, tokens: int, vocab: int, z_loss: float
) -> None:
    logits_BTV, targets_BT, gradient_BT = inputs(rows, tokens, vocab)
    expected = with_squares(logits_BTV, targets_BT, z_loss)
    learnt_BT, losses_BT = token_losses(logits_BTV, targets_BT, z_loss)
    assert (expected - learnt_BT).abs().max() < 1e-13
    assert torch.equal(losses_BT, plain(logits_BTV, targets_BT)) and not losses_BT.requires_grad
    wanted, got = (
        torch.autograd.grad(losses, logits_BTV, gradient_BT)[0] for losses in (expected, learnt_BT)
    )
    assert (wanted - got).abs().max() < 1e-13


@pytest.mark.parametrize("z_loss", [0.0, 1e-4])
def test_loss_and_gradient_have_one_tensor_of_the_size_of_the_logits_in_all(z_loss: float) -> None:
    logits_BTV, targets_BT, gradient_BT = inputs(2, 8, 500, torch.float32)
    with LiveBytes([logits_BTV]) as live:
        learnt_BT, _ = token_losses(logits_BTV, targets_BT, z_loss)
        torch.autograd.grad(learnt_BT, logits_BTV, gradient_BT)
    assert logits_BTV.nbytes <= live.peak < 1.1 * logits_BTV.nbytes


def test_every_backward_pass_through_kept_losses_gives_the_whole_gradient() -> None:
    logits_BTV, targets_BT, gradient_BT = inputs(2, 5, 30)
    (expected,) = torch.autograd.grad(plain(logits_BTV, targets_BT), logits_BTV, gradient_BT)
    losses_BT, _ = token_losses(logits_BTV, targets_BT)
    for again in (True, True, False):
        (found,) = torch.autograd.grad(losses_BT, logits_BTV, gradient_BT, retain_graph=again)
        assert (expected - found).abs().max() < 1e-15


def test_a_target_beyond_the_vocabulary_is_an_error() -> None:
    logits_BTV, targets_BT, _ = inputs(1, 4, 10)
    with pytest.raises(IndexError):
        token_losses(logits_BTV, targets_BT.fill_(10))


@pytest.mark.parametrize("z_loss", [0.0, 0.5])
def test_a_compiler_gets_the_plain_formula(z_loss: float) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    logits_BTV, targets_BT, _ = inputs(1, 4, 10)
    compiled = torch.compile(token_losses, backend=keep, fullgraph=True)
    values = logits_BTV, targets_BT, z_loss
    for found, expected in zip(compiled(*values), token_losses(*values), strict=True):
        torch.testing.assert_close(found, expected, atol=0, rtol=1e-14)
    assert F.cross_entropy in [node.target for node in graphs[0].graph.nodes]

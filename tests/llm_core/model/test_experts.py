"""Tokens pass through the experts that a router chooses, and load is balanced as published."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llm_core.memory.config import NO_SAVINGS
from llm_core.model.config import ModelConfig
from llm_core.model.expert_config import ExpertsConfig
from llm_core.model.experts.feed_forward import SparseFeedForward
from llm_core.model.experts.router import balance, router_biases
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.average import Average
from llm_core.optim.balance import Balance, named
from llm_core.optim.method import Update
from llm_core.planner.cost import flops_per_token
from llm_core.training.expert_load import load_row
from tests.support.distributed.problem import Problem

GROUPED = "llm_core.model.experts.feed_forward.takes_grouped"
DIM, INNER, ROWS, TOKENS = 16, 12, 3, 7
SHAPE = ModelConfig(51, DIM, 1, 2, 2, INNER, 32)


def layer(**values: object) -> SparseFeedForward:
    experts = ExpertsConfig(**({"number": 5, "top_k": 2} | values))  # type: ignore[arg-type]
    torch.manual_seed(0)
    made = SparseFeedForward(SHAPE, experts).double()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return made


def inputs() -> Tensor:
    return torch.randn(ROWS, TOKENS, DIM, dtype=torch.float64, generator=seeded())


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_by_one(made: SparseFeedForward, x_BTD: Tensor) -> Tensor:
    """Each expert on all tokens, times gates that are zero for most."""
    x_ND = x_BTD.flatten(0, 1)
    _, _, chosen_NK, gates_NK = made.router(x_ND)
    gates_NE = torch.zeros(len(x_ND), made.config.number).double().scatter(1, chosen_NK, gates_NK)
    out = torch.zeros_like(x_ND)
    into, down = (
        part.matrices(torch.float64) for part in (made.experts.gate_up, made.experts.down)
    )
    for expert in range(made.config.number):
        gate, up = (x_ND @ into[expert].T).chunk(2, dim=1)
        out = out + gates_NE[:, expert : expert + 1] * ((F.silu(gate) * up) @ down[expert].T)
    return out.view_as(x_BTD)


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_every_token_gets_the_experts_it_is_sent_to_however_crowded(
    score: str, crowded: bool
) -> None:
    made, x_BTD = layer(score=score), inputs()
    if crowded:
        with torch.no_grad():
            made.router.weight.zero_()  # ties: all tokens to the same experts
    weights = tuple(made.parameters())
    ours, theirs = made(x_BTD), one_by_one(made, x_BTD)
    assert (ours - theirs).abs().max() < 1e-12
    noise = torch.randn(ours.shape, dtype=torch.float64, generator=seeded(2))
    pairs = zip(
        torch.autograd.grad((ours * noise).sum(), weights),
        torch.autograd.grad((theirs * noise).sum(), weights),
        strict=True,
    )
    assert all((one - other).abs().max() < 1e-12 for one, other in pairs)


@pytest.mark.parametrize("first", [0, 2])
def test_grouped_products_are_those_of_one_expert_after_another(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with experts without a token, and rows that belong to other processes."""
    made, x_BTD = layer(number=8, top_k=3).float(), inputs().float()[:, :2].requires_grad_()
    for part in (made.experts.gate_up, made.experts.down):
        kept = part.weight.detach().view(8, part.rows, -1)[first : first + 4].flatten(0, 1)
        part.weight = torch.nn.Parameter(kept.clone())
    made.experts.first = first
    weights = (x_BTD, *made.parameters())

    def found() -> tuple[Tensor, ...]:
        out = made(x_BTD)
        return out, *torch.autograd.grad(out.square().sum(), weights)

    one_by_one = found()
    monkeypatch.setattr(
        "llm_core.model.experts.feed_forward.takes_grouped", lambda _x, _inner: True
    )
    for one, other in zip(one_by_one, found(), strict=True):
        assert (one - other).abs().max() <= 1e-5 * one.abs().max()


@pytest.mark.gpu
def test_grouped_products_of_a_gpu_are_those_of_one_expert_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    shape = dataclasses.replace(SHAPE, dim=256, ffn_dim=128)
    made = SparseFeedForward(shape, ExpertsConfig(16, 4)).cuda()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    x_BTD = torch.randn(2, 300, 256, device="cuda", requires_grad=True)

    def found() -> tuple[Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            out = made(x_BTD).float()
        return out, *torch.autograd.grad(out.square().sum(), (x_BTD, *made.parameters()))

    grouped = found()
    monkeypatch.setattr(
        "llm_core.model.experts.feed_forward.takes_grouped", lambda _x, _inner: False
    )
    pairs = list(zip(found(), grouped, strict=True))
    assert all((one - other).norm() < 2e-2 * one.norm() for one, other in pairs)


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    made = layer(number=8, top_k=1, normalised=False)
    made(inputs()[:, :2]).sum().backward()
    grad = made.experts.down.weight.grad
    assert grad is not None
    assert not grad.isnan().any()
    assert (grad.view(8, -1).abs().sum(1) == 0).any()


def pairs_of(made: SparseFeedForward, x_BTD: Tensor) -> Tensor:
    _, _, chosen_NK, _ = made.router(x_BTD.flatten(0, 1))
    return F.one_hot(chosen_NK, made.config.number).sum(1).double().view(ROWS, TOKENS, -1)


def balance_by_hand(made: SparseFeedForward, x_BTD: Tensor, counted_BT: Tensor) -> Tensor:
    """(Sum of losses that SparseFeedForward adds) from the formulas of the papers."""
    logits_NE, scores_NE, _, _ = made.router(x_BTD.flatten(0, 1))
    config, pairs_BTE = made.config, pairs_of(made, x_BTD)
    shares_BTE = (scores_NE / scores_NE.sum(1, keepdim=True)).view(ROWS, TOKENS, -1)
    z_BT = logits_NE.logsumexp(1).square().view(ROWS, TOKENS)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(ROWS):
        here = counted_BT[row]
        if tokens := int(here.sum()):
            f_E = pairs_BTE[row][here].sum(0) / (config.top_k * tokens)
            p_E = shares_BTE[row][here].mean(0)
            total = total + config.balance_loss * tokens * config.number * (f_E * p_E).sum()
            total = total + config.z_loss * z_BT[row][here].sum()
    return total


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_backward_adds_the_gradient_of_both_losses_over_the_divisor(score: str) -> None:
    made, x_BTD = layer(score=score, balance_loss=0.7, z_loss=0.2), inputs()
    made.divisor = torch.tensor(13.0, dtype=torch.float64)
    counted_BT = torch.rand(ROWS, TOKENS, generator=seeded(3)) < 0.6
    counted_BT[1] = False
    weights = tuple(made.parameters())
    expected = torch.autograd.grad(
        made(x_BTD).sum() + balance_by_hand(made, x_BTD, counted_BT) / 13, weights
    )
    found = torch.autograd.grad(made(x_BTD, counted_BT).sum(), weights)
    assert all(
        (one - other).abs().max() < 1e-12 for one, other in zip(expected, found, strict=True)
    )
    plain = torch.autograd.grad(made(x_BTD).sum(), weights)
    assert (plain[0] - found[0]).abs().max() > 1e-3


def test_backward_counts_the_pairs_of_tokens_that_count_once() -> None:
    made, x_BTD = layer(), inputs()
    counted_BT = torch.rand(ROWS, TOKENS, generator=seeded(3)) < 0.6
    out = made(x_BTD, counted_BT)
    with torch.no_grad():
        made(x_BTD, counted_BT)  # as in a validation
    assert made.take_load(1) is None
    out.sum().backward()
    load_E = made.take_load(1)
    assert load_E is not None
    assert torch.equal(load_E, pairs_of(made, x_BTD)[counted_BT].sum(0))
    assert load_E.sum() == 2 * counted_BT.sum()


def test_balanced_experts_have_a_loss_of_one_and_others_what_transformers_has_over_k() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    made, x_BTD = layer(number=6, top_k=3, balance_loss=1.0), inputs()[:1]
    made.requires_grad_(False)
    logits, scores, chosen, _ = made.router(x_BTD.flatten(0, 1))
    everyone = torch.ones(1, TOKENS, dtype=torch.bool)
    loss, _ = balance(logits, scores, chosen, made.config, everyone)
    theirs = load_balancing_loss_func((logits.float(),), 6, 3)
    assert float(loss or 0) / TOKENS == pytest.approx(float(theirs) / 3, rel=1e-6)
    # Six tokens, whose pairs go round.
    turns = torch.tensor([[0, 1, 2], [3, 4, 5]] * 3)
    even = torch.full((6, 6), 1 / 6, dtype=torch.float64)
    loss, _ = balance(even.log(), even, turns, made.config, torch.ones(1, 6, dtype=torch.bool))
    assert float(loss or 0) / 6 == pytest.approx(1)


def test_a_bias_decides_who_is_chosen_and_not_how_much_it_counts() -> None:
    made, x_ND = layer(score="sigmoid", top_k=1, normalised=False), inputs().flatten(0, 1)
    assert made.router.bias is not None
    made.router.bias[3] = 2.0
    _, scores_NE, chosen_NK, gates_NK = made.router(x_ND)
    assert (chosen_NK == 3).all()
    assert torch.equal(gates_NK[:, 0], scores_NE[:, 3])


def test_a_bias_stays_float32_whatever_the_model_is_cast_to() -> None:
    made = layer(score="sigmoid").bfloat16()
    assert made.router.weight.dtype == torch.bfloat16
    assert made.router.bias is not None
    assert made.router.bias.dtype == torch.float32


def test_scores_that_are_equal_in_16_bits_are_still_told_apart() -> None:
    made = layer(number=3, top_k=1, normalised=False).float()
    with torch.no_grad():
        made.router.weight.zero_()
        made.router.weight[:, 0] = torch.tensor([1.0, 1.001, 1.002])
    x_ND = torch.zeros(1, DIM)
    x_ND[0, 0] = 1
    with torch.autocast("cpu", torch.bfloat16):
        assert made.router(x_ND)[2].item() == 2


def test_a_step_moves_a_bias_towards_the_mean_load_and_a_skipped_one_does_not() -> None:
    bias_E = torch.zeros(4)
    balance, loads_LE = Balance({0: bias_E}, 0.5), torch.tensor([[10.0, 2, 4, 0]]).double()
    balance.update(loads_LE, torch.tensor(True))
    assert torch.equal(bias_E, torch.zeros(4))
    balance.update(loads_LE, torch.tensor(False))
    assert bias_E.tolist() == [-0.5, 0.5, 0, 0.5]


def test_biases_are_averaged_as_weights_are() -> None:
    bias_E, never, zero = torch.zeros(2), torch.tensor(False), torch.zeros(())
    loads_LE = torch.tensor([[0.0, 0]] * 3 + [[3, 1]]).double()
    average, balance = Average(named({3: bias_E}), 0.5), Balance({3: bias_E}, 0.3)
    (state,) = average.states()
    assert state.weight.name == "blocks.3.ffn.router.bias"
    for number in (1, 2):
        balance.update(loads_LE, never)
        average.update(Update(1.0, torch.tensor(number).double(), zero, never))
    # -0.3 and -0.6, of which the second weighs twice as much.
    torch.testing.assert_close(state.piece, torch.tensor([-0.5, 0.5]))
    average.update(Update(1.0, torch.tensor(3).double(), zero, ~never))
    torch.testing.assert_close(state.piece, torch.tensor([-0.5, 0.5]))


def test_the_row_of_a_step_has_largest_load_over_mean_and_entropy_of_each_layer() -> None:
    row = load_row([10, 2, 4, 0, 4, 4, 4, 4, 0, 0, 0, 0], 3)
    assert row["expert_load"] == [2.5, 1, 0]
    assert row["expert_entropy"] == pytest.approx([0.9003, math.log(4), 0], abs=5e-5)


def test_a_model_in_16_bits_keeps_every_bit_of_a_bias() -> None:
    model = Transformer(Problem(family="glm4_moe").model())
    init_weights(model, 0)
    biases = dict(router_biases(model))
    for bias in biases.values():
        bias.fill_(0.3001)
    expected = {name: bias.clone() for name, bias in biases.items()}
    model.bfloat16()
    found = dict(router_biases(model))
    assert found and all(torch.equal(found[name], expected[name]) for name in expected)
    model.to("meta").to_empty(device="cpu")
    assert {bias.dtype for _, bias in router_biases(model)} == {torch.float32}


def test_plans_count_the_experts_of_a_token() -> None:
    model = dataclasses.replace(SHAPE, experts=ExpertsConfig(4, 2))
    assert flops_per_token(model, NO_SAVINGS, 16).six_n == 6 * model.num_parameters(active=True)


@pytest.mark.parametrize(
    "values",
    [
        {"score": "sigmoid", "shared_dim": 16, "z_loss": 0.01},
        {"shared_dim": 16, "shared_gate": True, "balance_loss": 0.1},
    ],
)
def test_compiled_passes_give_the_same_outputs_gradients_and_loads(
    values: dict[str, object],
) -> None:
    plain, compiled = layer(**values), layer(**values)
    compiled.compile_passes()
    x_BTD, counted_BT = inputs().requires_grad_(), torch.ones(ROWS, TOKENS, dtype=torch.bool)

    def found(made: SparseFeedForward) -> tuple[Tensor | None, ...]:
        out = made(x_BTD, counted_BT)
        weights = (x_BTD, *made.parameters())
        return out, *torch.autograd.grad(out.square().sum(), weights), made.take_load(1)

    for one, other in zip(found(plain), found(compiled), strict=True):
        assert one is not None and other is not None
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)

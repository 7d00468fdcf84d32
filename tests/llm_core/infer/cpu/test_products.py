"""Faster products are the same products."""

import copy

import pytest
import torch
from torch import nn

from llm_core.infer.cpu.products import FastLinear, speed_up
from tests.support.engine.small_model import make_model, random_ids


@pytest.mark.parametrize("bias", [True, False])
def test_products_of_any_number_of_rows_are_those_of_torch(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias)
    fast = FastLinear(plain)
    with torch.inference_mode():
        for shape in ((1, 24), (2, 24), (3, 24), (1, 1, 24), (2, 5, 24), (8, 1, 24), (0, 24)):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), plain(x))
            every_other = torch.randn(*shape[:-1], 48)[..., ::2]
            torch.testing.assert_close(fast(every_other), plain(every_other))


def test_weights_that_are_trained_on_are_the_ones_computed_with() -> None:
    fast = FastLinear(nn.Linear(6, 4))
    x = torch.randn(3, 6)
    fast(x).sum().backward()
    assert fast.weight.grad is not None
    with torch.no_grad():
        fast.weight.mul_(2)
        torch.testing.assert_close(fast(x), nn.functional.linear(x, fast.weight, fast.bias))


def test_a_model_keeps_its_weights_and_its_answers() -> None:
    model = make_model(dtype=torch.float32)
    fast = copy.deepcopy(model)
    speed_up(fast, copy_weights=True)
    assert isinstance(fast.head, FastLinear) and fast.head.weight is fast.embedding.weight
    assert [name for name, _ in fast.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    ids = torch.tensor([random_ids(9, seed=0)])
    with torch.inference_mode():
        torch.testing.assert_close(fast(ids), model(ids), rtol=1e-4, atol=1e-4)


def test_other_numbers_are_left_alone() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        model = make_model(dtype=dtype)
        speed_up(model, copy_weights=True)
        assert not any(isinstance(module, FastLinear) for module in model.modules())

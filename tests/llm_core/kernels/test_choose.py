"""The kernel that chooses tokens gives those of torch's operations."""

import random

import pytest
import torch

from llm_core.infer.choice.choosing import Choosers, choose, kept_weights
from llm_core.infer.choice.sampling import SamplingParams

pytestmark = pytest.mark.gpu
ROWS = 64


def chosen(logits_BV: torch.Tensor, params: list[SamplingParams], step: int) -> torch.Tensor:
    from llm_core.kernels.decode.choose import ChooseTokens

    device, rows = logits_BV.device, len(params)
    given = Choosers.of(params, list(range(rows)), device)
    ids_B = torch.zeros(rows, dtype=torch.int64, device=device)
    steps_B = torch.full((rows,), step, dtype=torch.int64, device=device)
    lengths_B = torch.full((rows,), 9, dtype=torch.int32, device=device)
    told_BK = torch.zeros(rows, 2, dtype=torch.int64, device=device)
    num_told_B = torch.ones(rows, dtype=torch.int32, device=device)
    ChooseTokens(device)(
        logits_BV, given.temperature_B1, given.top_k_B1, given.top_p_B1, given.min_p_B1,
        given.seed_B, given.choice_B, steps_B, ids_B, lengths_B, told_BK, num_told_B,
    )  # fmt: skip
    assert (steps_B == step + 1).all() and (lengths_B == 10).all() and (num_told_B == 2).all()
    assert (ids_B == told_BK[:, 1].clamp(min=0)).all()
    return told_BK[:, 1]


@pytest.mark.parametrize("vocab", [7, 1000, 32768, 151_936])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_tokens_are_those_of_torch(vocab: int, spread: float) -> None:
    moments = random.Random(vocab)
    generator = torch.Generator().manual_seed(vocab)
    # Rounded, so that many are equal.
    logits_BV = (torch.randn(ROWS, vocab, generator=generator) * spread).mul(8).round().div(8)
    logits_BV[0, : vocab // 2] = float("-inf")
    logits_BV = logits_BV.cuda()
    params = [
        SamplingParams(
            temperature=moments.choice([0.0, 0.3, 1.0, 2.0]),
            top_k=moments.choice([0, 0, 1, 5, 200, 10**6]),
            top_p=moments.choice([1.0, 1.0, 0.9, 0.5, 0.0]),
            min_p=moments.choice([0.0, 0.0, 0.1]),
            seed=moments.randrange(2**62),
        )
        for _ in range(ROWS)
    ]
    num_equal = 0
    for step in range(8):
        found_B = chosen(logits_BV, params, step)
        steps_B = torch.full((ROWS,), step, dtype=torch.int64, device="cuda")
        given = Choosers.of(params, list(range(ROWS)), "cuda")
        num_equal += int((found_B == choose(logits_BV, given, steps_B)).sum())
        kept_B = kept_weights(logits_BV, given).gather(1, found_B[:, None])[:, 0]
        assert (kept_B > 0).all()
    # Sums that are rounded otherwise move few borders.
    assert num_equal >= 0.99 * 8 * ROWS


def test_rows_that_are_not_numbers_get_no_token() -> None:
    logits_BV = torch.zeros(4, 50, device="cuda")
    logits_BV[0, 3], logits_BV[1, 4], logits_BV[2] = float("nan"), float("inf"), float("-inf")
    for temperature in (0.0, 1.0):
        found_B = chosen(logits_BV, [SamplingParams(temperature=temperature)] * 4, 0)
        assert found_B[:3].tolist() == [-1] * 3 and found_B[3] >= 0


def test_draws_have_the_frequencies_of_the_weights() -> None:
    logits_BV = torch.tensor([[0.0, 1.0, 2.0, -1.0]], device="cuda").repeat(20_000, 1)
    params = [SamplingParams(temperature=0.7, seed=3)] * 20_000
    found_B = chosen(logits_BV, params, 0)
    share_V = torch.bincount(found_B, minlength=4).double() / 20_000
    expected_V = (logits_BV[0] / 0.7).softmax(-1)
    assert torch.allclose(share_V, expected_V.double(), atol=0.015)

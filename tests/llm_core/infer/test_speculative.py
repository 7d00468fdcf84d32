"""Guesses change how many passes an answer takes, and nothing of what it is."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from llm_core.config import ConfigError
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.generation import generate
from llm_core.infer.speculative import NGramDraft, _check
from tests.support.engine.drafts import DRAFTS, generate_speculatively
from tests.support.engine.small_model import make_model, random_ids

VOCAB = 61


@pytest.mark.parametrize("name", DRAFTS)
def test_greedy_answers_are_those_of_plain_decoding(name: str) -> None:
    model = make_model()
    for seed in range(6):
        prompt = random_ids(1 + 3 * seed, seed=seed)
        plain = generate(model, [prompt], GREEDY, 30)[0]
        found = generate_speculatively(model, prompt, GREEDY, 30, DRAFTS[name]())
        assert found.ids == plain
        assert found.num_passes + found.num_taken == 30
        stopped = generate_speculatively(model, prompt, GREEDY, 30, DRAFTS[name](), [plain[7]])
        assert stopped.ids == plain[: plain.index(plain[7])]


def test_good_guesses_save_passes() -> None:
    model, prompt = make_model(), random_ids(9, seed=2)
    found = generate_speculatively(model, prompt, GREEDY, 30, DRAFTS["itself"]())
    assert found.num_passes == 6 and found.num_taken == found.num_guesses == 24
    assert NGramDraft().propose([1, 2, 3, 9, 8, 1, 2, 3], 2, GREEDY)[0] == [9, 8]
    assert NGramDraft().propose([1, 2, 3], 2, GREEDY)[0] == []


def count_pairs(draw: Callable[[int], list[int]], draws: int) -> np.ndarray:
    counts = np.zeros((VOCAB, VOCAB))
    for seed in range(draws):
        first, second = draw(seed)
        counts[first, second] += 1
    return counts


@pytest.mark.parametrize("certain", [True, False])
def test_a_guess_and_its_correction_have_the_distribution_of_the_model(certain: bool) -> None:
    """Chi-square over the token at the first guess and the one behind it."""
    logits_TV = torch.tensor([[1.0, 0.0, 2.0, -1.0], [0.0, 1.0, 0.5, 0.2]]).double()
    drawn_KV = None if certain else torch.tensor([[0.1, 0.6, 0.1, 0.2]]).double()
    draws, params = 1000, [SamplingParams(temperature=1.5, seed=seed) for seed in range(1000)]
    guesses = torch.multinomial(
        torch.tensor([0.1, 0.6, 0.1, 0.2]), draws, True, generator=torch.Generator().manual_seed(0)
    ).tolist()
    first, behind = np.zeros(4), np.zeros(4)
    for guess, each in zip(guesses, params, strict=True):
        new = _check(logits_TV, [guess], drawn_KV, each, 7)
        first[new[0]] += 1
        if len(new) == 2:
            behind[new[1]] += 1
    for counts, logits_V in ((first, logits_TV[0]), (behind, logits_TV[1])):
        expected = torch.softmax(logits_V / 1.5, 0).numpy() * counts.sum()
        # Three degrees of freedom, 0.1 %.
        assert ((counts - expected) ** 2 / expected).sum() < 16.3
    assert 0 < behind.sum() < draws


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n-gram", "model", "wrong"])
def test_sampled_answers_have_the_distribution_of_plain_decoding(name: str) -> None:
    """Chi-square over the first two tokens, against probabilities that are computed."""
    model, draws, prompt = make_model(), 1500, [5, 9, 5]
    values = {"temperature": 6.0, "top_k": 6, "top_p": 0.97}
    draft = DRAFTS[name]()

    def probabilities(tokens: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits_V = model(torch.tensor([tokens]))[0, -1]
        kept, ids = (logits_V / values["temperature"]).topk(6)
        weights = kept.softmax(0)
        weights[(weights.cumsum(0) - weights) >= values["top_p"]] = 0
        found = np.zeros(VOCAB)
        found[ids.numpy()] = (weights / weights.sum()).numpy()
        return found

    def draw(seed: int) -> list[int]:
        params = SamplingParams(seed=seed, **values)  # type: ignore[arg-type]
        return generate_speculatively(model, prompt, params, 3, draft).ids[:2]

    first = probabilities(prompt)
    expected = np.array(
        [p * probabilities([*prompt, i]) if p else first * 0 for i, p in enumerate(first)]
    )
    counts = count_pairs(draw, draws)
    assert counts[expected == 0].sum() == 0
    likely = expected * draws >= 5
    parts = [*(expected[likely] * draws), (expected[~likely]).sum() * draws]
    seen = [*counts[likely], counts[~likely].sum()]
    chi2 = sum((s - e) ** 2 / e for s, e in zip(seen, parts, strict=True) if e)
    freedom = len(parts) - 1
    assert freedom > 8
    # Wilson and Hilferty: 0.1 % of fair samples are above.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi2 < bound


def test_a_draft_that_is_the_model_is_always_taken() -> None:
    model = make_model()
    params = SamplingParams(temperature=4.0, seed=3)
    found = generate_speculatively(model, random_ids(5, seed=1), params, 25, DRAFTS["itself"]())
    assert found.num_taken == found.num_guesses > 0
    again = generate_speculatively(model, random_ids(5, seed=1), params, 25, DRAFTS["itself"]())
    assert again == found


def test_penalties_are_refused() -> None:
    with pytest.raises(ConfigError, match="no penalties"):
        params = SamplingParams(presence_penalty=1.0)
        generate_speculatively(make_model(), [1], params, 4, NGramDraft())

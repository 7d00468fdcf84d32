"""What a request generates depends on it alone, and is what recomputing every token would give."""

import pytest
import torch

from llm_core.infer.cache.rows import decode, prefill, static_cache
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.generation import generate
from tests.support.engine.small_model import make_model, random_ids

PROMPTS = [random_ids(n, seed=n) for n in (7, 1, 12, 4)]


@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_ragged_batch_has_the_logits_of_each_prompt_alone(num_kv_heads: int) -> None:
    model = make_model(num_kv_heads)
    together = static_cache(model, list(map(len, PROMPTS)), 3)
    steps = [prefill(model, PROMPTS, together)]
    steps += [decode(model, [9, 8, 7, 6], together), decode(model, [1, 2, 3, 4], together)]
    for row, prompt in enumerate(PROMPTS):
        alone = static_cache(model, [len(prompt)], 3)
        expected = [prefill(model, [prompt], alone), decode(model, [[9, 8, 7, 6][row]], alone)]
        expected.append(decode(model, [[1, 2, 3, 4][row]], alone))
        for batched, single in zip(steps, expected, strict=True):
            assert (batched[row] - single[0]).abs().max() <= 1e-10


@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=3)]
)
def test_ragged_batch_generates_what_each_prompt_generates_alone(params: SamplingParams) -> None:
    model = make_model()
    together = generate(model, PROMPTS, [params] * len(PROMPTS), 10, eos_ids=[0])
    assert together == [
        generate(model, [prompt], [params], 10, eos_ids=[0])[0] for prompt in PROMPTS
    ]
    assert (
        together == generate(model, PROMPTS[::-1], [params] * len(PROMPTS), 10, eos_ids=[0])[::-1]
    )


def test_greedy_generation_matches_recomputing_every_token() -> None:
    model, sequence = make_model(), list(PROMPTS[0])
    with torch.no_grad():
        for _ in range(12):
            sequence.append(int(model(torch.tensor([sequence]))[0, -1].argmax()))
    assert generate(model, [PROMPTS[0]], GREEDY, 12) == [sequence[len(PROMPTS[0]) :]]


def test_generation_ends_before_end_of_text_and_tells_tokens_as_they_come() -> None:
    model = make_model()
    free = generate(model, PROMPTS, GREEDY, 8)
    assert all(len(answer) == 8 for answer in free)
    eos = free[0][3]
    told: list[tuple[int, int]] = []
    ended = generate(
        model,
        PROMPTS,
        GREEDY,
        8,
        [eos],
        on_token=lambda request, token: told.append((request, token)),
    )
    for answer, whole in zip(ended, free, strict=True):
        assert answer == (whole[: whole.index(eos)] if eos in whole else whole)
    assert [
        [token for r, token in told if r == request] for request in range(len(PROMPTS))
    ] == ended


def test_equal_prompts_with_one_seed_get_streams_of_their_own() -> None:
    model, prompt = make_model(), PROMPTS[0]
    params = SamplingParams(temperature=3.0, seed=5)
    first, second = generate(model, [prompt, prompt], params, 12)
    assert first != second
    assert generate(model, [prompt, prompt], params, 12) == [first, second]


def test_empty_prompts_and_unknown_ids_are_refused() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        generate(model, [[1], []], GREEDY, 2)
    with pytest.raises(ValueError, match="prompt 0 has token 61"):
        generate(model, [[3, 61]], GREEDY, 2)
    with pytest.raises(ValueError, match="prompt 0 has token -1, the model knows 0 to 60"):
        generate(model, [[3, -1, 5]], GREEDY, 2)
    with pytest.raises(ValueError, match="more than the model's max_seq_len"):
        generate(model, [[1] * 60], GREEDY, 5)
    assert generate(model, [], GREEDY, 2) == []
    assert generate(model, [[1]], GREEDY, 0) == [[]]

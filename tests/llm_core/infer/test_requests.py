"""An engine answers each of many requests as if it were alone, and forgets what has ended."""

import random
from typing import Any

import pytest
import torch

from llm_core.config import ConfigError
from llm_core.infer.choice.edits import DenseEdits, ListedEdits, LogitEdits
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.generation import generate
from llm_core.infer.requests import NewToken, Request
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model, random_ids

PROMPT = random_ids(8, seed=3)
LIVELY = SamplingParams(temperature=2.0, seed=1)


def make_engine(model: Transformer | None = None, **values: Any) -> Engine:
    roomy = {"cache_tokens": 512, "block_tokens": 4, "budget_tokens": 16, "max_running": 4}
    return Engine(model or make_model(), EngineConfig(**(roomy | values)), eos_ids=())


def finish(engine: Engine) -> list[NewToken]:
    told: list[NewToken] = []
    while engine.busy:
        told += engine.step()
    assert engine.num_used_blocks == engine.num_running == engine.num_waiting == 0
    return told


def alone(model: Transformer, prompt: list[int], params: SamplingParams, limit: int) -> list[int]:
    return generate(model, [prompt], [params], limit)[0]


def test_a_prompt_of_whole_blocks_asked_twice_gets_the_same_answer_from_fewer_tokens() -> None:
    model = make_model()
    engine = make_engine(model)
    answers = []
    for _ in range(2):
        request = engine.submit(PROMPT, GREEDY, 6)
        finish(engine)
        answers.append(request.answers[0])
    assert answers == [alone(model, PROMPT, GREEDY, 6)] * 2
    assert engine.num_prefix_tokens == 4, "of two full blocks the last token's is computed again"


def test_without_a_prefix_cache_nothing_is_reused() -> None:
    engine = make_engine(prefix_cache=False)
    for _ in range(2):
        engine.submit(PROMPT, GREEDY, 2)
        finish(engine)
    assert engine.num_prefix_tokens == 0


@pytest.mark.parametrize("params", [GREEDY, LIVELY])
def test_preempted_requests_repeat_no_token_and_continue_their_random_streams(
    params: SamplingParams,
) -> None:
    model = make_model()
    engine = make_engine(model, cache_tokens=48, prefix_cache=False)
    prompts = [random_ids(9, seed=seed) for seed in range(4)]
    requests = [engine.submit(prompt, params, 20, first_choice=7) for prompt in prompts]
    told = finish(engine)
    assert engine.num_preemptions > 0
    roomy = make_engine(model)
    for request, prompt in zip(requests, prompts, strict=True):
        expected = roomy.submit(prompt, params, 20, first_choice=7)
        finish(roomy)
        assert [new.id for new in told if new.request is request] == expected.answers[0]
        assert request.answers == expected.answers


def test_several_answers_to_a_prompt_differ_and_come_again() -> None:
    # Its last block is not full, so each answer needs a copy to write into.
    model, prompt = make_model(), random_ids(9, seed=3)
    found = []
    for _ in range(2):
        engine = make_engine(model)
        request = engine.submit(prompt, LIVELY, 8, n=4)
        finish(engine)
        assert engine.num_computed_tokens < 2 * len(prompt) + 4 * 8, "one prompt for all"
        found.append(request.answers)
    assert found[0] == found[1] and len({tuple(answer) for answer in found[0]}) == 4
    assert found[0][0] == alone(model, prompt, LIVELY, 8)
    cramped = make_engine(model, cache_tokens=32, max_running=2)
    request = cramped.submit(prompt, LIVELY, 8, n=4)
    finish(cramped)
    assert request.answers == found[0]


def test_a_cancelled_answer_frees_its_blocks_at_once() -> None:
    engine = make_engine()
    first, second = (engine.submit(random_ids(20, seed=s), GREEDY, 20) for s in (1, 2))
    engine.step()
    engine.step()
    engine.cancel(second)  # in the middle of its prompt
    engine.cancel(second)
    before = engine.num_used_blocks
    told = [new for _ in range(4) for new in engine.step()]
    assert before == 5 and {new.request for new in told} == {first}
    engine.cancel(first)
    assert not engine.busy and engine.num_used_blocks == 0 and first.finishes == [None]
    several = engine.submit(PROMPT, LIVELY, 5, n=3)
    engine.step()
    engine.cancel(several, choice=1)
    told = finish(engine)
    assert {new.choice for new in told} == {0, 2}
    assert list(map(len, several.answers)) == [5, 1, 5]


def test_a_stop_id_ends_an_answer_and_is_not_part_of_it() -> None:
    model = make_model()
    free = alone(model, PROMPT, GREEDY, 10)
    stop = free[4]
    for eos_ids, stop_ids in (([stop], ()), ([], (stop,)), ([60, stop], ())):
        engine = Engine(model, EngineConfig(cache_tokens=64), eos_ids)
        request = engine.submit(PROMPT, SamplingParams(temperature=0, stop_ids=stop_ids), 10)
        told = finish(engine)
        assert request.answers[0] == free[: free.index(stop)]
        assert (told[-1].id, told[-1].finish, request.finishes) == (None, "stop", ["stop"])
    patient = SamplingParams(temperature=0, stop_ids=(stop,), min_new_tokens=7)
    assert stop not in alone(model, PROMPT, patient, 10)[:7]
    assert len(alone(model, PROMPT, patient, 10)) >= 7


def test_penalties_and_bias_change_what_their_definitions_say() -> None:
    model = make_model()
    prompt = [5, 5, 5, 9]
    with torch.no_grad():
        logits_V = model(torch.tensor([prompt]))[0, -1].float()

    def first(prompt: list[int] = prompt, **values: Any) -> tuple[list[int], torch.Tensor]:
        """The answer of one token, and logits edited by hand."""
        params = SamplingParams(temperature=0, **values)
        edited_V = logits_V.clone()
        for token in {5, 9}:  # once per id, however often it occurs
            sign = edited_V[token] > 0
            edited_V[token] *= 1 / params.repetition_penalty if sign else params.repetition_penalty
        for token, bias in params.logit_bias.items():
            edited_V[token] += bias
        return alone(model, prompt, params, 1), edited_V

    for values in ({"repetition_penalty": 40.0}, {"logit_bias": {17: 1e4}}):
        answer, edited_V = first(**values)
        assert answer == [int(edited_V.argmax())]
    likeliest = int(logits_V.argmax())
    assert first(logit_bias={likeliest: -1e4})[0] != [likeliest]
    free = alone(model, PROMPT, GREEDY, 12)
    assert len(set(free)) < 12, "something to penalise"
    for name in ("presence_penalty", "frequency_penalty"):
        params = SamplingParams(temperature=0, **{name: 1e4})
        assert len(set(alone(model, PROMPT, params, 12))) == 12


@pytest.mark.parametrize("edits", [DenseEdits(4, torch.device("cpu")), ListedEdits(4)])
def test_a_repetition_penalty_lowers_logits_of_either_sign_once_per_id(edits: LogitEdits) -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias={3: -1.0})
    slots = [edits.take(params, prompt) for prompt in ([0, 0, 0], [1])]
    edits.count(slots, [1, 3])
    logits = torch.tensor([[4.0, -4.0, 4.0, 4.0]] * 2)
    edits.apply(logits, dict(enumerate(slots)))
    assert logits.tolist() == [[2.0, -8.0, 4.0, 3.0], [4.0, -8.0, 4.0, 1.0]]
    edits.release(slots[0])
    again = edits.take(SamplingParams(presence_penalty=0.5), [2])
    assert again == slots[0]
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [4.0, -4.0, 4.0, 4.0]])
    edits.apply(logits, {1: again})
    assert logits.tolist() == [[0.0, 0.0, 0.0, 0.0], [4.0, -4.0, 4.0, 4.0]]


@pytest.mark.parametrize("seed", range(20))
def test_listed_edits_are_those_of_rows_over_the_vocabulary_to_the_last_bit(seed: int) -> None:
    """Answers come and go, so that slots are used again, and grow beyond their first places."""
    vocab, moments = 300, random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dense, listed = DenseEdits(vocab, torch.device("cpu")), ListedEdits(vocab)
    slots: list[tuple[int, int]] = []
    for step in range(120):
        if not slots or (len(slots) < 6 and moments.random() < 0.1):
            biased = moments.sample(range(vocab), moments.choice([0, 0, 1, 40]))
            params = SamplingParams(
                repetition_penalty=moments.choice([1.0, 1.1, 0.7]),
                presence_penalty=moments.choice([0.0, 0.3, -0.2]),
                frequency_penalty=moments.choice([0.0, 0.1, -0.7]),
                logit_bias={token: moments.uniform(-100, 100) for token in biased},
            )
            prompt = moments.choices(range(vocab), k=moments.randrange(1, 200))
            slots.append((dense.take(params, prompt), listed.take(params, prompt)))
        if len(slots) > 1 and moments.random() < 0.05:
            ended = slots.pop(moments.randrange(len(slots)))
            dense.release(ended[0])
            listed.release(ended[1])
        logits_BV = torch.randn(7, vocab, generator=generator)
        logits_BV[:, step % vocab] = float("-inf")
        rows = moments.sample(range(7), len(slots))
        expected_BV, found_BV = logits_BV.clone(), logits_BV.clone()
        dense.apply(expected_BV, dict(zip(rows, (slot for slot, _ in slots), strict=True)))
        listed.apply(found_BV, dict(zip(rows, (slot for _, slot in slots), strict=True)))
        assert torch.equal(found_BV, expected_BV)
        ids = moments.choices(range(40 if step % 2 else vocab), k=len(slots))
        dense.count([slot for slot, _ in slots], ids)
        listed.count([slot for _, slot in slots], ids)
    assert dense.num_taken == listed.num_taken == len(slots)


def test_frequency_counts_and_presence_does_not() -> None:
    """Logits that are all alike but for one: it is taken until its penalty outweighs it."""
    model = make_model()
    with torch.no_grad():
        model.head.weight = torch.nn.Parameter(torch.zeros_like(model.head.weight))
    for name, count in (("frequency_penalty", 3), ("presence_penalty", 8)):
        params = SamplingParams(temperature=0, logit_bias={30: 2.5, 0: -9}, **{name: 1.0})
        answer = alone(model, PROMPT, params, 8)
        # Two and a half ones: after that, others are likelier.
        assert answer.count(30) == count


def test_logarithms_are_those_of_the_full_pass_whatever_was_done_between() -> None:
    model = make_model()
    engine = make_engine(model, cache_tokens=48)
    prompts = [random_ids(n, seed=n) for n in (9, 3, 14)]
    requests = [
        engine.submit(prompt, LIVELY, 12, logprobs=3, prompt_logprobs=2) for prompt in prompts
    ]
    told = finish(engine)
    assert engine.num_preemptions > 0
    for request in requests:
        tokens = [*request.prompt_ids, *request.answers[0]]
        with torch.no_grad():
            full_TV = model(torch.tensor([tokens]))[0].log_softmax(-1)
        scores = [None if s is None else (s.logprob, s.top) for s in request.prompt_scores]
        assert scores[0] is None
        scores += [(new.logprob, new.top) for new in told if new.request is request]
        for place, score in enumerate(scores[1:], start=1):
            assert score is not None and score[0] is not None and score[1] is not None
            assert abs(score[0] - float(full_TV[place - 1, tokens[place]])) <= 1e-10
            count = 2 if place < len(request.prompt_ids) else 3
            top = full_TV[place - 1].topk(count)
            assert [token for token, _ in score[1]] == top.indices.tolist()
            assert [value for _, value in score[1]] == pytest.approx(top.values.tolist())


def test_a_prompt_may_be_scored_without_an_answer() -> None:
    engine = make_engine()
    request = engine.submit(PROMPT, GREEDY, 0, prompt_logprobs=1)
    told = finish(engine)
    assert [(new.id, new.finish) for new in told] == [(None, "length")]
    assert request.answers == [[]] and None not in request.prompt_scores[1:]
    again = engine.submit(PROMPT, GREEDY, 0, prompt_logprobs=1)
    finish(engine)
    assert again.prompt_scores == request.prompt_scores, "also where its prefix is known"


def test_a_mask_decides_what_may_follow() -> None:
    def only_even(answer: Any) -> torch.Tensor | None:
        return None if len(answer) == 2 else torch.arange(61) % 2 == 0

    engine = make_engine()
    request = engine.submit(PROMPT, LIVELY, 9, allowed=only_even)
    finish(engine)
    assert all(token % 2 == 0 for place, token in enumerate(request.answers[0]) if place != 2)


def test_two_hundred_requests_with_cancellations_leak_nothing_and_answer_as_alone() -> None:
    model, choose = make_model(), random.Random(4)
    engine = make_engine(model, cache_tokens=48, budget_tokens=12)
    shared = random_ids(9, seed=0)
    alive: list[tuple[Request, list[int]]] = []
    ended: list[tuple[Request, list[int]]] = []
    for number in range(200):
        own = random_ids(1 + number % 13, seed=number)
        prompt = shared + own if choose.random() < 0.5 else own
        lively = SamplingParams(seed=number % 3, top_p=0.9)
        params = choose.choice([GREEDY, lively, SamplingParams(presence_penalty=2.0)])
        limit, n = choose.randrange(1, 9), choose.choice([1, 1, 1, 2, 3])
        alive.append((engine.submit(prompt, params, limit, n=n), prompt))
        for _ in range(choose.randrange(3)):
            engine.step()
        if choose.random() < 0.2:
            engine.cancel(alive.pop(choose.randrange(len(alive)))[0])
        ended += [each for each in alive if None not in each[0].finishes]
        alive = [each for each in alive if None in each[0].finishes]
    finish(engine)
    assert engine.num_preemptions > 0 and engine.num_prefix_tokens > 0
    assert engine.edits.num_taken == 0
    for request, prompt in choose.sample(ended + alive, 60):
        other = make_engine(model)
        expected = other.submit(prompt, request.params, request.max_new_tokens, n=request.n)
        finish(other)
        assert request.answers == expected.answers


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"prompt_ids": [61]}, "has token 61, the model knows 0 to 60"),
        ({"max_new_tokens": 60}, "more than the model's max_seq_len"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"n": 0}, "n \\(0\\) must be at least 1"),
        ({"logprobs": 62}, "logprobs \\(62\\) must be from 0 to 61"),
        ({"params": SamplingParams(logit_bias={61: 1.0})}, "logit_bias names token 61"),
        ({"params": SamplingParams(stop_ids=(61,))}, "stop_ids names token 61"),
        ({"params": SamplingParams(stop_ids=(-1,))}, "stop_ids names token -1"),
    ],
)
def test_impossible_requests_are_refused_and_leave_nothing(
    values: dict[str, Any], message: str
) -> None:
    engine = make_engine()
    asked = {"prompt_ids": PROMPT, "params": GREEDY, "max_new_tokens": 4} | values
    with pytest.raises(ConfigError, match=message):
        engine.submit(**asked)
    assert not engine.busy


@pytest.mark.parametrize(
    "values", [{"block_tokens": 12}, {"budget_tokens": 64}, {"cache_tokens": 3}]
)
def test_impossible_engines_are_config_errors(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        EngineConfig(**values)

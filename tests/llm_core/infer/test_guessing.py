"""An engine that guesses gives the answers of one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.config import EngineConfig
from llm_core.infer.engine import Engine
from llm_core.infer.guessing import GuessingEngine
from llm_core.infer.speculative import ModelDraft, NGramDraft
from tests.support.engine.drafts import DRAFTS, other_model
from tests.support.engine.small_model import make_model, random_ids

SETTINGS = EngineConfig(cache_tokens=256, block_tokens=4, budget_tokens=32, max_running=4)
FEW_BLOCKS = EngineConfig(cache_tokens=48, block_tokens=4, budget_tokens=32, max_running=4)


def answers(engine: Engine, kinds: list[SamplingParams]) -> list[list[list[int]]]:
    """Of prompts that come one pass after another, two answers to the last."""
    requests = []
    for number, params in enumerate(kinds):
        n = 2 if number == len(kinds) - 1 else 1
        prompt = random_ids(3 + 2 * number, number)
        requests.append(engine.submit(prompt, params, 12 + number, n=n, first_choice=number))
        engine.step()
    while engine.busy:
        engine.step()
    return [request.answers for request in requests]


@pytest.mark.parametrize("settings", [SETTINGS, FEW_BLOCKS])
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_answers_are_those_of_the_plain_engine(draft: str, settings: EngineConfig) -> None:
    model = make_model()
    plain = answers(Engine(model, settings, []), [GREEDY] * 3)
    guessing = GuessingEngine(model, settings, [], DRAFTS[draft]())
    assert answers(guessing, [GREEDY] * 3) == plain
    assert guessing.pool.num_free == guessing.pool.num_blocks
    stops = [plain[1][0][5]]
    stopping = GuessingEngine(model, settings, stops, DRAFTS[draft]())
    assert answers(stopping, [GREEDY] * 3) == answers(Engine(model, settings, stops), [GREEDY] * 3)


@pytest.mark.parametrize("cache_tokens", [48, 60])
def test_answers_that_were_sent_back_go_on_as_they_were(cache_tokens: int) -> None:
    model = make_model()
    few = EngineConfig(cache_tokens=cache_tokens, block_tokens=4, budget_tokens=32, max_running=4)

    def run(engine: Engine) -> list[list[int]]:
        requests = [engine.submit(random_ids(5 + 2 * i, i), GREEDY, 30) for i in range(4)]
        while engine.busy:
            engine.step()
        return [request.answers[0] for request in requests]

    plain = run(Engine(model, SETTINGS, []))
    engines = (
        Engine(model, replace(few, burst_tokens=4), []),
        GuessingEngine(model, few, [], NGramDraft()),
    )
    for engine in engines:
        assert run(engine) == plain
        assert engine.num_preemptions


def test_good_guesses_save_passes() -> None:
    model = make_model()
    engine = GuessingEngine(model, SETTINGS, [], ModelDraft(model, 64))
    request = engine.submit(random_ids(9, 2), GREEDY, 31)
    passes = 0
    while engine.busy:
        engine.step()
        passes += 1
    assert passes == 1 + 6 and len(request.answers[0]) == 31
    assert engine.num_taken == engine.num_guesses == 24


def test_sampled_and_edited_answers_are_those_of_the_plain_engine() -> None:
    model = make_model()
    kinds = [
        SamplingParams(temperature=2.0, seed=1),
        SamplingParams(temperature=0.0, presence_penalty=0.5),
        GREEDY,
    ]
    draft = ModelDraft(other_model(), 64)
    found = answers(GuessingEngine(model, SETTINGS, [], draft), kinds)
    assert found == answers(Engine(model, SETTINGS, []), kinds)
    repeated = GuessingEngine(model, SETTINGS, [], NGramDraft())
    answers(repeated, kinds[:1])
    assert not repeated.num_guesses

"""Passes of few tokens at fixed sizes compute what whole sequences and plain passes compute."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from llm_core.infer.bursts import Bursts
from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.few_tokens import MOST_SEQUENCES, FewTokens, Part
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model, random_ids

STREAM = (GREEDY, 0)
# Tokens in the cache, new ones, blocks.
SEQUENCES = ((5, 3, [4, 9]), (0, 6, [2, 7]), (11, 1, [5, 0, 8]), (4, 2, [3, 6]))


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_a_pass_of_few_tokens_stores_and_tells_what_whole_sequences_give(
    num_kv_heads: int, window: int
) -> None:
    plain = make_model(num_kv_heads)
    config = dataclasses.replace(plain.config, window=window)
    model = Transformer(config).double().eval()
    model.load_state_dict(plain.state_dict())
    found, expected = (PagedCache(config, 12, 4, torch.float64) for _ in range(2))
    few = FewTokens(Bursts(model, found, spare_block=11, most_told=1))
    ids = [random_ids(old + new, seed=old) for old, new, _ in SEQUENCES]
    with torch.inference_mode():
        for cache, lengths in (
            (found, [old for old, _, _ in SEQUENCES]),
            (expected, [old + new for old, new, _ in SEQUENCES]),
        ):
            rows = [row for row, length in enumerate(lengths) if length]
            coming = Pass.of(
                [ids[row][: lengths[row]] for row in rows],
                [lengths[row] for row in rows],
                [SEQUENCES[row][2] for row in rows],
                4,
                "cpu",
            )
            cache.begin(coming)
            model.hidden(coming.ids_N[None], coming.positions_N[None], cache)
        parts = [
            Part(tokens[old:], old, blocks, 0, STREAM)
            for tokens, (old, _, blocks) in zip(ids, SEQUENCES, strict=True)
        ]
        told = few.run(parts)
        again = few.run(parts)  # what a pass leaves in its buffers changes nothing
        best = [int(model(torch.tensor([tokens]))[0, -1].argmax()) for tokens in ids]
    assert told == again == best
    for ours, theirs in ((found.keys, expected.keys), (found.values, expected.values)):
        for row, (_, _, blocks) in enumerate(SEQUENCES):
            held = [x.stored[:, blocks].flatten(1, 2)[:, : len(ids[row])] for x in (ours, theirs)]
            assert (held[0] - held[1]).abs().max() <= 1e-10


def answers(model: Transformer, captures: bool, ask: Callable[[Engine], Any]) -> list[Any]:
    engine = Engine(model, EngineConfig(cache_tokens=512, block_tokens=4, budget_tokens=65), [7])
    engine.captures = captures
    requests = ask(engine)
    while engine.busy:
        engine.step()
    assert engine.num_used_blocks == 0
    return [(request.answers, request.finishes, request.prompt_scores) for request in requests]


def test_what_follows_a_known_prefix_is_computed_by_a_captured_pass() -> None:
    model, prefix = make_model(), random_ids(30, seed=1)

    def ask(engine: Engine) -> list[Any]:
        first = engine.submit([*prefix, 3], GREEDY, 1)
        while engine.busy:
            engine.step()
        if engine.captures:
            engine._pass = pytest.fail  # type: ignore[method-assign]
        drawn = SamplingParams(temperature=1.5, seed=3, stop_ids=(9,))
        return [
            first,
            *(engine.submit([*prefix, *random_ids(n, seed=n)], drawn, 9) for n in (1, 5, 12)),
            engine.submit([*prefix, 4], GREEDY, 30),
        ]

    assert answers(model, True, ask) == answers(model, False, ask)


def test_requests_that_want_more_than_a_token_of_a_pass_get_it_alone_and_among_others() -> None:
    model = make_model()
    penalised = SamplingParams(temperature=0.0, repetition_penalty=1.3, min_new_tokens=3)

    def ask(engine: Engine) -> list[Any]:
        prompts = [random_ids(n, seed=n) for n in (5, 9, 2, 7, 3)]
        kinds: list[tuple[SamplingParams, int, dict[str, int]]] = [
            (GREEDY, 6, {}),
            (GREEDY, 6, {"n": 3}),
            (penalised, 6, {}),
            (GREEDY, 0, {"prompt_logprobs": 2}),
            (GREEDY, 6, {"logprobs": 2}),
        ]
        requests = []
        for alone in (True, False):
            for prompt, (params, limit, wanted) in zip(prompts, kinds, strict=True):
                requests.append(engine.submit(prompt, params, limit, **wanted))
                while alone and engine.busy:
                    engine.step()
        return requests

    assert answers(model, True, ask) == answers(model, False, ask)


def test_a_pass_of_too_many_tokens_or_sequences_is_refused() -> None:
    model = make_model()  # of 64 positions
    few = Engine(model, EngineConfig(cache_tokens=64), []).few_tokens
    assert few.serves(64, MOST_SEQUENCES)
    assert not few.serves(65, 1) and not few.serves(17, MOST_SEQUENCES + 1)

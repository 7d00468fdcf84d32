"""Tokens that are written in bursts are those that are written one by one."""

import dataclasses
import random
from typing import Any

import pytest
import torch

from llm_core.infer.cache.paged import PagedCache
from llm_core.infer.choice.sampling import GREEDY, SamplingError, SamplingParams
from llm_core.infer.decoders import DecodeRows, ModelDecoder
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.model.transformer import Transformer
from tests.support.engine.small_model import make_model, random_ids

LIVELY = SamplingParams(temperature=1.5, seed=4, top_k=20, top_p=0.95)


def answers(
    model: Transformer, burst_tokens: int, splits: bool = False, **values: Any
) -> list[list[list[int]]]:
    """Of twenty requests that come, are cancelled and end at different times."""
    moments = random.Random(5)
    roomy = {"cache_tokens": 256, "block_tokens": 4, "budget_tokens": 16, "max_running": 5}
    engine = Engine(model, EngineConfig(burst_tokens=burst_tokens, **(roomy | values)), [7])
    engine.captures = splits
    requests = []
    for number in range(20):
        params = LIVELY if number % 2 else GREEDY
        prompt = random_ids(moments.randrange(1, 12), seed=number)
        requests.append(engine.submit(prompt, params, moments.randrange(1, 20)))
        for _ in range(moments.randrange(3)):
            engine.step()
    while engine.busy:
        engine.step()
    assert engine.num_used_blocks == 0
    return [request.answers for request in requests]


@pytest.mark.parametrize("burst_tokens", [1, 4])
def test_decodes_give_their_tokens_apart_from_prompts_too(burst_tokens: int) -> None:
    model = make_model()
    assert answers(model, burst_tokens, splits=True) == answers(model, 1)
    # So few blocks that answers are interrupted.
    tight: dict[str, Any] = {"cache_tokens": 64, "max_running": 5}
    assert answers(model, burst_tokens, splits=True, **tight) == answers(model, 1, **tight)


@pytest.mark.parametrize("burst_tokens", [2, 3, 8])
def test_a_burst_gives_the_tokens_of_single_steps(burst_tokens: int) -> None:
    model = make_model()
    assert answers(model, burst_tokens) == answers(model, 1)


def test_bursts_shrink_where_blocks_are_few() -> None:
    model = make_model()
    assert answers(model, 8, cache_tokens=40) == answers(model, 1)


@pytest.mark.parametrize("window", [0, 5])
def test_a_decoder_gives_the_logits_of_the_whole_sequence_whatever_its_other_rows_are(
    window: int,
) -> None:
    model = make_model()
    config = dataclasses.replace(model.config, window=window)
    narrow = Transformer(config).double()
    narrow.load_state_dict(model.state_dict())
    model = narrow.eval()
    ids = [random_ids(length, seed=length) for length in (11, 1, 6)]
    cache = PagedCache(config, 13, 4, torch.float64)
    rows = DecodeRows.empty(4, 4, 12, torch.device("cpu"))
    decoder = ModelDecoder(model, cache, rows)
    for row, blocks in enumerate([[5, 0, 9], [3], [11, 2]]):
        rows.tables_BM[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    with torch.inference_mode():
        for place in range(11):
            for row, tokens in enumerate(ids):  # shorter ones repeat their last token
                rows.lengths_B[row] = min(place, len(tokens) - 1)
                rows.ids_B[row] = tokens[rows.lengths_B[row]]
            logits_BV = decoder()
        for row, tokens in enumerate(ids):
            expected_V = model(torch.tensor([tokens]))[0, -1]
            assert torch.allclose(logits_BV[row], expected_V, rtol=0, atol=1e-10)


def test_logits_that_are_not_numbers_end_a_burst_in_one_line() -> None:
    model = make_model()
    engine = Engine(model, EngineConfig(cache_tokens=64, burst_tokens=4), [])
    engine.submit(random_ids(3, seed=1), GREEDY, 9)
    engine.step()
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(SamplingError, match="row 0"):
        engine.step()

"""An engine holds what the window of a model sees, and answers as whole sequences do."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.model.transformer import Transformer
from tests.support.engine.drafts import engine_of
from tests.support.engine.small_model import make_model, random_ids

WINDOW, NEW = 9, 14


def windowed(num_kv_heads: int = 2, full: tuple[int, ...] = ()) -> Transformer:
    plain = make_model(num_kv_heads)
    # Only Qwen mixes layers with and without a window, and Qwen 2 has biases.
    biased = bool(full)
    config = dataclasses.replace(plain.config, window=WINDOW, full_layers=full, qkv_bias=biased)
    torch.manual_seed(0)
    model = Transformer(config).double().eval()
    model.load_state_dict(plain.state_dict(), strict=not biased)
    return model


def whole(model: Transformer, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(NEW):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("kind", ["plain", "captured", "int8", "guessed"])
@pytest.mark.parametrize("num_kv_heads", [1, 4])
def test_answers_are_those_of_whole_sequences_in_a_cache_smaller_than_any(
    num_kv_heads: int, kind: str
) -> None:
    model = windowed(num_kv_heads)
    # 11 blocks of 2: less than the shortest sequence has. Two run at once, and are interrupted.
    config = EngineConfig(
        cache_tokens=22, block_tokens=2, budget_tokens=11, max_running=2,
        cache="int8" if kind == "int8" else "model",
    )  # fmt: skip
    engine = engine_of(kind, model, config)
    prefix = random_ids(24, seed=5)
    prompts = [[*prefix, *random_ids(n, seed=n)] for n in (1, 9, 12)]
    requests = [engine.submit(prompt, GREEDY, NEW) for prompt in prompts]
    while engine.busy:
        engine.step()
        assert engine.num_used_blocks <= 11
    assert engine.num_used_blocks == 0
    found = [request.answers[0] for request in requests]
    if kind == "int8":  # rounded, so only near the answers of whole sequences
        assert all(len(answer) == NEW for answer in found)
    else:
        assert found == [whole(model, prompt) for prompt in prompts]


def test_one_sequence_holds_no_more_than_its_window_and_a_pass() -> None:
    engine = Engine(
        windowed(),
        EngineConfig(cache_tokens=64, block_tokens=2, budget_tokens=3, max_running=2),
        [],
    )
    engine.submit(random_ids(40, seed=1), GREEDY, NEW)
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, engine.num_used_blocks)
    assert most <= (WINDOW + 3) // 2 + 1


def test_a_layer_without_a_window_keeps_all() -> None:
    model = windowed(full=(1,))
    engine = Engine(model, EngineConfig(cache_tokens=64, block_tokens=2), [])
    prompt = random_ids(30, seed=1)
    request = engine.submit(prompt, GREEDY, NEW)
    engine.step()
    assert engine.num_used_blocks == 15
    while engine.busy:
        engine.step()
    assert request.answers[0] == whole(model, prompt)

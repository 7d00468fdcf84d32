"""Models of experts answer through a cache as they do without one, and as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_core.huggingface.export import load_model
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.engine import Engine, EngineConfig
from tests.support.engine.published_models import random_ids, reference

NEW = 12


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("case", ["mixtral", "qwen 2 moe", "qwen 3 moe", "glm 4.5"])
def test_greedy_answers_of_an_engine_are_those_of_transformers(
    case: str, captured: bool, tmp_path: Path
) -> None:
    theirs = reference(case, tmp_path)
    prompts = [row[: 5 + 9 * number] for number, row in enumerate(random_ids())]
    config = EngineConfig(cache_tokens=128, budget_tokens=7, max_running=2)
    engine = Engine(load_model(tmp_path), config, [])
    engine.captures = captured
    requests = [engine.submit(prompt.tolist(), GREEDY, NEW) for prompt in prompts]
    while engine.busy:
        engine.step()
    for prompt, request in zip(prompts, requests, strict=True):
        ids = prompt[None]
        with torch.no_grad():
            for _ in range(NEW):
                ids = torch.cat([ids, theirs(ids).logits[:, -1:].argmax(-1)], dim=1)
        assert request.answers[0] == ids[0, len(prompt) :].tolist()

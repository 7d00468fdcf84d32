"""A server with a draft gives the greedy answers of one without."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from llm_core.infer.guessing import GuessingEngine
from tasks.serving.config import ServeConfig
from tests.support.served_models import NAME, Served, publish_model, served


def ask(server: Served, prompt: str, **values: Any) -> str:
    body = {"model": NAME, "prompt": prompt, "max_tokens": 24, "temperature": 0} | values
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.loads(reply.read())["choices"][0]["text"])


@pytest.mark.parametrize("draft", ["ngram", "itself"])
def test_greedy_answers_stay_what_they_are(draft: str, tmp_path: Path) -> None:
    folder = publish_model(tmp_path)
    prompts = ["the the", "ab", "好好 the"]
    with served(folder) as plain:
        expected = [ask(plain, prompt) for prompt in prompts]
        stopped = ask(plain, prompts[0], stop=expected[0][5:7])
        sampled = ask(plain, prompts[1], temperature=1, seed=3)
    config = ServeConfig(draft=str(folder) if draft == "itself" else draft)
    with served(folder, config) as guessing, ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda prompt: ask(guessing, prompt), prompts)) == expected
        assert ask(guessing, prompts[0]) == expected[0]
        assert ask(guessing, prompts[0], stop=expected[0][5:7]) == stopped
        assert ask(guessing, prompts[1], temperature=1, seed=3) == sampled
        engine = guessing.service.worker._engine
        assert isinstance(engine, GuessingEngine) and engine.num_guesses > 0


def test_a_draft_that_is_no_model_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    folder = publish_model(tmp_path)
    with (
        pytest.raises(ConfigError, match=r"draft \(elsewhere\) must be ngram or the folder"),
        served(folder, ServeConfig(draft="elsewhere")),
    ):
        pass

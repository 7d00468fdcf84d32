"""A server with a chat template, and OpenAI's client of it; modules may have servers of their
own."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.chat_templates import CHATML
from tests.support.served_models import Served, publish_model, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(publish_model(tmp_path_factory.mktemp("model"), CHATML)) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made

"""A load over HTTP times what the client of a real server sees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llm_core.bench.latency import Answered, summarise
from llm_core.bench.load import Asked, random_requests
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from tasks.bench import http_load
from tasks.bench.http_load import load_server
from tasks.evaluation.config import GenerateConfig
from tasks.serving.config import ServeConfig
from tests.support.served_models import Served, publish_model, served

SAMPLED = SamplingParams(temperature=0.9, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_model(tmp_path_factory.mktemp("small"))


def vocab_size(server: Served) -> int:
    return server.service.vocab_size


def test_answers_are_counted_by_the_server_and_timed_from_when_they_were_due(folder: Path) -> None:
    with served(folder, ServeConfig(max_running=2)) as server:
        asked = random_requests(6, (3, 30), (2, 9), vocab_size(server), 0, rate_per_s=200.0)
        answered = load_server(server.url, asked, SAMPLED)
    assert [each.failure for each in answered] == [None] * 6
    for wanted, each in zip(asked, answered, strict=True):
        # One that drew the end of a text is shorter.
        assert 1 <= each.num_tokens <= wanted.new_tokens
        assert each.due_at <= each.sent_at <= each.chunks[0][0]
    first = answered[0].due_at - asked[0].at_s
    assert [each.due_at - first for each in answered] == pytest.approx([e.at_s for e in asked])
    figures = summarise(answered)
    assert figures["failed"] == 0 and figures["queue_s"] is None


def test_a_closed_loop_over_http_holds_so_many_requests_open(folder: Path) -> None:
    with served(folder) as server:
        asked = random_requests(6, (3, 9), (4, 6), vocab_size(server), 0)
        answered = load_server(server.url, asked, GREEDY, concurrency=2)
    spans = [(each.sent_at, each.chunks[-1][0]) for each in answered]
    for begin, _ in spans:
        assert sum(sent <= begin < ended for sent, ended in spans) <= 2


def test_refused_and_broken_answers_are_failures_with_a_reason(folder: Path) -> None:
    with served(folder, ServeConfig(max_running=1, max_waiting=1)) as server:
        too_large = Asked((vocab_size(server),), 3)
        good = random_requests(1, (3, 3), (3, 3), vocab_size(server), 0)
        answered = load_server(server.url, [too_large, *good], GREEDY, concurrency=1)
    assert answered[0].failure is not None and answered[0].failure.startswith("HTTP 400: ")
    assert answered[1].failure is None
    gone = load_server(server.url, good, GREEDY)
    assert gone[0].failure is not None and "ClientConnectorError" in gone[0].failure


def test_a_chunk_without_text_is_no_first_token() -> None:
    """vllm#15106 counted the chunk that names the speaker."""
    answered = Answered(0.0, 0.0)
    http_load._take(answered, {"choices": [{"text": ""}]})
    assert not answered.chunks
    http_load._take(answered, {"choices": [{"text": "a"}]})
    http_load._take(answered, {"choices": [], "usage": {"completion_tokens": 7}})
    assert len(answered.chunks) == 1 and answered.num_tokens == 7


def test_a_stream_that_breaks_off_is_a_failure() -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        await writer.drain()
        writer.close()

    async def ask() -> Answered:
        server = await asyncio.start_server(broken, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            url = f"http://127.0.0.1:{port}"
            return (await http_load._load(url, [Asked((1,), 5)], GREEDY, None))[0]

    assert asyncio.run(ask()).failure == "the stream ended without usage"


@pytest.mark.slow
def test_a_server_of_its_own_process_answers_and_ends_with_its_block(folder: Path) -> None:
    with http_load.served(folder, ServeConfig(port=0), GenerateConfig(device="cpu")) as url:
        asked = random_requests(3, (3, 9), (4, 6), 200, 0)
        assert summarise(load_server(url, asked, GREEDY))["failed"] == 0
    assert "ClientConnectorError" in str(load_server(url, asked, GREEDY)[0].failure)


@pytest.mark.slow
def test_a_folder_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"nothing.* ended before it listened"),
        http_load.served(tmp_path / "nothing", ServeConfig(port=0), GenerateConfig(device="cpu")),
    ):
        pass

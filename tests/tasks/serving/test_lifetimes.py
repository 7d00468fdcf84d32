"""A request ends with its client, a full queue turns clients away, and a server that is told to
stop ends what runs."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llm_core.infer.bursts import Bursts
from llm_core.infer.engine import Engine
from llm_core.infer.requests import NewToken
from tasks.serving.config import ServeConfig
from tests.support.served_models import NAME, Served, publish_model, served, serving

ENDLESS: dict[str, Any] = {"model": NAME, "prompt": "x", "max_tokens": 400, "min_tokens": 400}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(folder: Path) -> Iterator[Served]:
    config = ServeConfig(max_running=2, max_waiting=1, max_choices=3, budget_tokens=8)
    with served(folder, config) as running:
        yield running


@pytest.fixture
def slow_steps(server: Served, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine, whose steps take long enough to act between them."""
    return slow_down(server, monkeypatch)


def slow_down(server: Served, monkeypatch: pytest.MonkeyPatch, step_s: float = 0.02) -> Engine:
    engine = server.service.worker._engine
    step = engine.step

    def slow() -> list[NewToken]:
        time.sleep(step_s)
        return step()

    monkeypatch.setattr(engine, "step", slow)
    return engine


@contextlib.contextmanager
def asked(server: Served, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection on which a completion was asked for."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request(body))
        yield connection


def request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


def until(holds: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    limit = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < limit, f"never: {what}"
        time.sleep(0.002)


def ends_within_two_steps(server: Served, engine: Engine) -> None:
    """Called once the client has gone: the server notices when it reads the closed connection."""
    worker, cancelled = server.service.worker, server.service.metrics.cancelled
    until(lambda: cancelled._value.get() == 1, "the client is missed")
    noticed = worker.num_steps
    until(lambda: not engine.busy, "the request ends")
    assert worker.num_steps <= noticed + 2
    assert engine.num_used_blocks == 0 and engine.num_running == 0


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_during_its_answer_frees_its_blocks(
    server: Served, slow_steps: Engine, is_streamed: bool
) -> None:
    with asked(server, ENDLESS | {"stream": is_streamed}) as connection:
        if is_streamed:
            assert connection.recv(10)
        until(lambda: server.service.worker.num_steps > 5, "some steps")
    ends_within_two_steps(server, slow_steps)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_while_its_prompt_is_read_frees_its_blocks(
    server: Served, slow_steps: Engine, is_streamed: bool
) -> None:
    long = [5] * 300  # 38 steps of 8 tokens
    with asked(server, {"prompt": long, "max_tokens": 9, "stream": is_streamed}):
        until(lambda: server.service.worker.num_steps > 3, "some steps")
    ends_within_two_steps(server, slow_steps)
    assert server.service.worker.num_steps < 35, "the prompt was read to its end"


def test_a_full_queue_answers_429_and_when_to_come_again(
    server: Served, slow_steps: Engine
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(asked(server, ENDLESS))
        until(lambda: server.service.worker.num_open == 3, "three requests")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(
                urllib.request.Request(
                    f"{server.url}/v1/completions", json.dumps(ENDLESS).encode()
                ),
                timeout=20,
            )
        assert error.value.code == 429 and int(error.value.headers["Retry-After"]) >= 1
        assert json.loads(error.value.read())["error"]["type"] == "rate_limit_error"
    until(lambda: server.service.worker.num_open == 0, "all clients are gone")


def read_nothing(server: Served) -> socket.socket:
    """A connection whose client asks for half a megabyte and takes none of it."""
    server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    body = ENDLESS | {"max_tokens": 120, "min_tokens": 120}
    connection.sendall(request(body | {"stream": True, "logprobs": 20, "n": 3}))
    return connection


def test_a_client_that_reads_nothing_holds_no_place_in_the_queue(server: Served) -> None:
    worker = server.service.worker
    with read_nothing(server):
        until(lambda: worker.num_open == 3, "the request runs")
        until(lambda: worker.num_open == 0, "its answers are written")
        assert server.service.metrics.new_tokens._value.get() == 0, "all is sent"


def test_a_client_that_reads_nothing_is_cut_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.serving.server.STALLED_S", 0.5)
    with served(folder, ServeConfig(max_running=4)) as server:
        slow_down(server, monkeypatch, 0.1)  # or its answer would be over before
        with read_nothing(server):
            cancelled = server.service.metrics.cancelled
            until(lambda: cancelled._value.get() == 1, "the connection is cut")


def test_a_stop_string_within_a_burst_ends_its_answer_once(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.service.worker._engine
    monkeypatch.setattr(engine, "burst_tokens", 8)
    bursts = Bursts(engine.model, engine.cache, engine.num_blocks, 8)
    monkeypatch.setattr(engine, "bursts", bursts)
    body = ENDLESS | {"max_tokens": 40, "min_tokens": 0, "n": 2, "seed": 1}

    def reply(**more: Any) -> bytes:
        content = json.dumps(body | more).encode()
        asking = urllib.request.Request(f"{server.url}/v1/completions", content)
        with urllib.request.urlopen(asking, timeout=20) as answer:
            return answer.read()  # type: ignore[no-any-return]

    text = json.loads(reply())["choices"][0]["text"]
    lines = reply(stop=text[2:4], stream=True).decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    ended = sorted(choice["index"] for choice in choices if choice["finish_reason"])
    assert ended == [0, 1]
    first = [choice["text"] for choice in choices if choice["index"] == 0]
    assert "".join(first) == text[: text.index(text[2:4])]


def test_an_engine_that_fails_is_said_and_answers_no_more(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[NewToken]:
        raise RuntimeError("secret prompt")

    monkeypatch.setattr(server.service.worker._engine, "step", broken)
    asking = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(ENDLESS).encode())
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(asking, timeout=20)
        assert error.value.code == 503 and b"secret" not in error.value.read()
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{server.url}/health", timeout=20)
    assert error.value.code == 503


def test_sigterm_ends_what_runs_takes_no_more_and_exits_with_0(folder: Path) -> None:
    with serving(folder) as (process, url):
        body = json.dumps(ENDLESS | {"model": folder.name, "prompt": "canary"}).encode()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(
                urllib.request.urlopen,
                urllib.request.Request(f"{url}/v1/completions", body),
                timeout=60,
            )

            def is_running() -> bool:
                with urllib.request.urlopen(f"{url}/metrics", timeout=20) as reply:
                    return b"textmill_answers_running 1.0" in reply.read()

            until(is_running, "the request runs")
            process.send_signal(signal.SIGTERM)
            answer = json.loads(asking.result().read())
        assert answer["usage"]["completion_tokens"] == 400
        assert process.wait(timeout=60) == 0
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5)
        assert process.stderr is not None and "canary" not in process.stderr.read()

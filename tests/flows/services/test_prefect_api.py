"""Whatever is wrong with a Prefect server is one of the errors that callers know."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flows.services.prefect_api import NotFound, PrefectApi, Refused, Unreachable


@contextmanager
def server_that_says(reply: bytes) -> Iterator[PrefectApi]:
    """An API whose server answers one request with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        yield PrefectApi(f"http://127.0.0.1:{server.getsockname()[1]}/api")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"", Unreachable),
        (b"hello\r\n", Unreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", Unreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", Unreachable),
        (b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n", Unreachable),
        (b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n", Refused),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", NotFound),
    ],
)
def test_what_is_wrong_with_an_answer_is_a_known_error(
    reply: bytes, expected: type[Exception]
) -> None:
    with server_that_says(reply) as api, pytest.raises(expected) as found:
        api.ask("GET", "/flow_runs/1")
    assert found.type is expected and "GET /flow_runs/1" in str(found.value)

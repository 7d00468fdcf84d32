"""Serves on loopback as two hosts, of which one counts as far, and decides where names lead."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tasks.ingest import remotesystems, retries
from tasks.ingest.remotesystems import PUBLIC

TEXT = b'{"text": "secret of this machine"}\n'


class Server(BaseHTTPRequestHandler):
    """Redirects what is in `moved` and answers the rest; keeps the headers it was sent."""

    moved: dict[str, str]
    links: Callable[[str], list[str]] | None
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        if self.path in self.moved:
            self.send_response(302)
            self.send_header("Location", self.moved[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        folder = self.links is not None and not self.path.endswith(".jsonl")
        body = (
            "".join(f'<a href="{link}">x</a>' for link in self.links(self.path)).encode()
            if folder and self.links
            else TEXT
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if folder else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve() -> Iterator[tuple[int, type[Server]]]:
    handler = type("Handler", (Server,), {"moved": {}, "seen": [], "links": None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_address[1], handler
    server.shutdown()
    server.server_close()


Pair = tuple[tuple[int, type[Server]], tuple[int, type[Server]]]
"""(port, handler) of each of two servers."""


@contextmanager
def serve_far_and_near(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Two servers. The name `far.example` leads to the first, whose address counts as public; the
    second is of this machine."""
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)
    with ExitStack() as servers:
        far, near = servers.enter_context(serve()), servers.enter_context(serve())
        lead_to(monkeypatch, {"far.example": "127.0.0.1"})
        ports = {far[0]}
        kind_of = remotesystems.nearness

        def by_port(sockaddr: Any) -> int:
            return PUBLIC if sockaddr[1] in ports else kind_of(str(sockaddr[0]))

        monkeypatch.setattr(remotesystems, "nearness_of", by_port)
        yield far, near


def lead_to(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **more: real(names.get(host, host), *rest, **more),
    )


PUBLIC_THEN_HERE = ("8.8.8.8", "127.0.0.1")


def lead_in_turn(monkeypatch: pytest.MonkeyPatch, names: dict[str, tuple[str, ...]]) -> None:
    """Answer each question for a name by the next of its addresses, and at last by the last."""
    real, left = socket.getaddrinfo, {name: list(answers) for name, answers in names.items()}

    def answer(host: Any, *rest: Any, **more: Any) -> Any:
        answers = left.get(host, [host])
        return real(answers.pop(0) if len(answers) > 1 else answers[0], *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)

"""Receivers of notices on this machine: a web server and a mail server that keep what they get, and
a server that never answers."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def _served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def web_receiver(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(address, objects that were posted). status: what it answers."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            if status // 100 == 3:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with _served(server):
        yield f"http://127.0.0.1:{server.server_port}/hook", got


@contextmanager
def mail_receiver() -> Iterator[tuple[int, list[str]]]:
    """(port, messages) of a server that speaks as much SMTP as a sender needs."""
    got: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            self.say("220 here")
            while line := self.rfile.readline().decode().strip():
                word = line.upper().partition(" ")[0]
                if word == "DATA":
                    self.say("354 go on")
                    lines = []
                    while (one := self.rfile.readline().decode()) not in (".\r\n", ""):
                        lines.append(one)
                    got.append("".join(lines))
                self.say("221 bye" if word == "QUIT" else "250 ok")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with _served(server):
        yield server.server_address[1], got


@contextmanager
def silent_receiver() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]

"""A local server that a test asks, and a service of an earlier version that guards nothing."""

from __future__ import annotations

import http.client
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.services.access import auth_string, basic_auth
from flows.services.processes import start_detached, start_time

UNGUARDED = """
import http.server, json, subprocess, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
"""Answers everything to everybody, as the server of an earlier version did."""
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, content."""


@dataclass(frozen=True)
class Server:
    state: Path
    url: str
    said: list[str]
    replaced: tuple[int, ...]
    """Processes that ran before it."""

    @property
    def port(self) -> int:
        return int(self.url.removesuffix("/api").rpartition(":")[2])

    def ask(
        self, method: str, path: str, body: Any = None, auth: str | None = "", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """What is answered to a program, with the password unless `auth` is another one or None."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if auth is not None:
            given["Authorization"] = basic_auth(auth or auth_string(self.state))
        connection.request(method, path, None if body is None else json.dumps(body), given)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, content

    def deployment(self) -> dict[str, Any]:
        return dict(json.loads(self.ask("GET", "/api/deployments/name/pipeline/local")[2]))

    def num_flow_runs(self) -> int:
        return int(self.ask("POST", "/api/flow_runs/count", {})[2])


def start_unguarded(
    state: Path, name: str, command: list[str], port: int | None = None
) -> dict[str, Any]:
    process = start_detached(
        [sys.executable, "-c", *command], os.environ, state, state / f"{name}.out"
    )
    return {"pid": process.pid, "started": start_time(process.pid), "port": port}

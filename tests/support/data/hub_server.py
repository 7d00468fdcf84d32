"""Answers as Hugging Face's hub does for one dataset, on loopback: its HTTP API as of
huggingface_hub 2.4 and the files behind it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPO = "me/texts"


class Hub(BaseHTTPRequestHandler):
    """Dataset `me/texts`: {revision: {path: content}}. Parquet files lie elsewhere, as large files
    do, behind a redirection."""

    revisions: dict[str, dict[str, bytes]]
    asked: list[str]
    failures: list[int]
    token: str | None = None
    """What one must show; None: the dataset is public."""
    page_entries = 2

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"GET {path} {self.headers.get('Range', '')}".strip())
        if self.failures:
            self._answer(self.failures.pop(0), {"error": "busy"})
        elif path.startswith("/elsewhere/"):
            self._send(path)
        elif path.startswith(f"/api/datasets/{REPO}/tree/"):
            self._tree(path.removeprefix(f"/api/datasets/{REPO}/tree/"))
        elif path.startswith(f"/datasets/{REPO}/resolve/"):
            self._resolve(path.removeprefix(f"/datasets/{REPO}/resolve/"))
        elif path.startswith(f"/api/datasets/{REPO}") and self._known(
            path.partition("/revision/")[2] or "main"
        ):
            self._answer(200, {"id": REPO, "sha": "0" * 40, "siblings": []})
        elif not path.startswith(f"/api/datasets/{REPO}"):
            # To one who shows nothing the hub does not tell a dataset that is private from one that
            # is not there.
            code = 404 if "Authorization" in self.headers else 401
            self._answer(code, {"error": "Invalid username or password."}, "RepoNotFound")

    def do_POST(self) -> None:
        """Facts of single paths."""
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"POST {path}")
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
        revision = path.removeprefix(f"/api/datasets/{REPO}/paths-info/")
        if self._known(revision):
            self._answer(
                200,
                [
                    _entry(p, self.revisions[revision][p])
                    for p in wanted
                    if p in self.revisions[revision]
                ],
            )

    def _known(self, revision: str) -> bool:
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self._answer(401, {"error": "Invalid username or password."})
        elif revision not in self.revisions:
            self._answer(404, {"error": f"Invalid rev id: {revision}"}, "RevisionNotFound")
        else:
            return True
        return False

    def _tree(self, rest: str) -> None:
        revision = next((r for r in self.revisions if rest == r or rest.startswith(f"{r}/")), rest)
        if not self._known(revision):
            return
        files, query = self.revisions[revision], parse_qs(urlsplit(self.path).query)
        top = rest.removeprefix(revision).strip("/")
        below = {p: body for p, body in files.items() if not top or p.startswith(f"{top}/")}
        entries = {p: _entry(p, body) for p, body in below.items()}
        for p in below:
            for folder in (p.rsplit("/", n)[0] for n in range(1, p.count("/") + 1)):
                entries.setdefault(
                    folder, {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
                )
        if query.get("recursive", ["false"])[0].lower() == "false":
            entries = {
                p: e for p, e in entries.items() if "/" not in p.removeprefix(top).strip("/")
            }
        entries.pop(top, None)
        if not entries:
            self._answer(404, {"error": f"{top} does not exist on {revision}"}, "EntryNotFound")
            return
        begin = int(query.get("cursor", ["0"])[0])
        page = [entries[p] for p in sorted(entries)][begin : begin + self.page_entries]
        recursive = query.get("recursive", ["false"])[0]
        more = f"http://{self.headers['Host']}{urlsplit(self.path).path}?recursive={recursive}&cursor={begin + len(page)}"  # noqa: E501
        self._answer(
            200,
            page,
            headers={"Link": f'<{more}>; rel="next"'} if begin + len(page) < len(entries) else {},
        )

    def _resolve(self, rest: str) -> None:
        revision = next((r for r in self.revisions if rest.startswith(f"{r}/")), rest)
        if not self._known(revision):
            return
        path = rest.removeprefix(f"{revision}/")
        if path not in self.revisions[revision]:
            self._answer(404, {"error": "Entry not found"}, "EntryNotFound")
        elif path.endswith(".parquet"):
            self._answer(
                302,
                {},
                headers={"Location": f"http://{self.headers['Host']}/elsewhere/{revision}/{path}"},
            )
        else:
            self._send(f"/elsewhere/{revision}/{path}")

    def _send(self, place: str) -> None:
        place = place.removeprefix("/elsewhere/")
        revision = next(r for r in self.revisions if place.startswith(f"{r}/"))
        path = place.removeprefix(f"{revision}/")
        data = self.revisions[revision][path]
        begin, _, end = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        piece = data[int(begin) : int(end) + 1 if end else None]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("ETag", f'"{_oid(data)}"')
        self.send_header(
            "Content-Range", f"bytes {begin}-{int(begin) + len(piece) - 1}/{len(data)}"
        )
        self.send_header("Content-Length", str(len(piece)))
        self.end_headers()
        self.wfile.write(piece)

    def _answer(
        self, status: int, body: Any, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        given = {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }
        for name, value in {**given, **({"X-Error-Code": code} if code else {})}.items():
            self.send_header(name, value)
        if status >= 400:
            self.send_header("X-Error-Message", body["error"])
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "oid": _oid(data), "size": len(data)}


@contextmanager
def serve_hub(revisions: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, type[Hub]]]:
    """(address, its handler, whose fields tests read and change)."""
    handler = type("Handler", (Hub,), {"revisions": revisions, "asked": [], "failures": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()

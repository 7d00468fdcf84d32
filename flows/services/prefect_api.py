"""Calls a Prefect server's REST API without Prefect's client, whose import takes a second.

Used where seconds count (`textmill status`) or where nothing may wait (the worker's keeper, a
run's page): calls end after a few seconds, and an unreachable server is one error, `Unreachable`.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from flows.services.access import HOST_NAMES, auth_string, basic_auth

ACTIVE = ("PENDING", "RUNNING", "CANCELLING")
"""Types of states in which a process works on a run; they hold its slot."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
TAG = "textmill"
"""Of every flow run and deployment of textmill."""
PAGE = 200
PATIENCE_S = 30.0
"""Time in which a server answers on a busy machine, for callers who cannot do without."""
BUSY, NOT_FOUND = 503, 404


class Unreachable(RuntimeError):
    """A Prefect server that does not answer; the message says where and why."""


class Refused(RuntimeError):
    """What a Prefect server will not do, in its own words."""


class NotFound(Refused):
    """What a Prefect server does not have."""


@dataclass(frozen=True)
class PrefectApi:
    """A server's API. auth: user and password, as Prefect takes them. key: of Prefect Cloud."""

    url: str
    auth: str | None = None
    key: str | None = None
    limit_s: float = 5.0

    @classmethod
    def local(cls, state: Path, url: str) -> PrefectApi:
        """The server that `textmill up` started over a state folder."""
        return cls(url, auth_string(state))

    @classmethod
    def configured(cls) -> PrefectApi | None:
        """The server that the environment names."""
        if not (url := os.environ.get("PREFECT_API_URL")):
            return None
        auth, key = (os.environ.get(f"PREFECT_API_{name}") for name in ("AUTH_STRING", "KEY"))
        return cls(url.rstrip("/"), auth, key)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request, as JSON. Raises Unreachable and Refused."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.key or self.auth is not None:
            secret = f"Bearer {self.key}" if self.key else basic_auth(self.auth or "")
            request.add_header("Authorization", secret)
        proxies: dict[str, str] | None = (
            {} if request.host.partition(":")[0] in HOST_NAMES else None
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
        until = time.monotonic() + self.limit_s
        while True:
            try:
                with opener.open(request, timeout=self.limit_s) as reply:
                    text = reply.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                said = error.read(2000).decode("utf-8", "replace")
                if error.code < 500:
                    kind = NotFound if error.code == NOT_FOUND else Refused
                    raise kind(f"{method} {path}: {said or error.reason}") from error
                # What a server over SQLite answers while another process writes: nothing was done.
                if error.code != BUSY or time.monotonic() > until:
                    raise Unreachable(f"{method} {path}: {error.code} {error.reason}") from error
                time.sleep(0.2)
            except (OSError, HTTPException, ValueError) as error:
                raise Unreachable(f"{method} {path}: {error}") from error

    def pages(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        """Every item that a filter finds."""
        offset = 0
        while page := self.ask("POST", path, {**body, "offset": offset, "limit": PAGE}):
            yield from page
            if len(page) < PAGE:
                return
            offset += len(page)

    def flow_runs(self, types: tuple[str, ...], **more: Any) -> Iterator[dict[str, Any]]:
        """Flow runs by the types of their states. more: other parts of the filter."""
        chosen = {"state": {"type": {"any_": list(types)}}, **more}
        return self.pages("/flow_runs/filter", flow_runs=chosen)

    def set_state(
        self, kind: str, run_id: str, type_: str, message: str, name: str | None = None
    ) -> None:
        """Put a run (`flow_runs` or `task_runs`) into a state, whatever the server's rules for
        living runs are."""
        state = {"type": type_, "message": message} | ({"name": name} if name else {})
        self.ask("POST", f"/{kind}/{run_id}/set_state", {"state": state, "force": True})


def is_ours(item: Mapping[str, Any]) -> bool:
    """Whether a flow run or deployment is textmill's: a server may have others."""
    return TAG in item.get("tags", ())

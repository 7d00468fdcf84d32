"""Checks every request before anything reads it: its host, its origin, its key and its size.

A page of another site can make a browser send requests to a server on this machine, under this
machine's address or, by rebinding a name, under its own. So the host must be one of the server's
names, and a request with an origin must come from the server's own page.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.serving.failures import ApiError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
DISCARDED_BYTES, DISCARD_S = 1 << 20, 2.0
"""Of a body that is too long, how much is read before the refusal, and for how long."""
GUARDED = ("/v1/", "/metrics")
"""What needs the key: all but the page and the health check, which tell nothing."""


class Guards:
    """Middleware around the application."""

    def __init__(
        self,
        app: ASGIApp,
        host_names: Iterable[str],
        api_key: str | None,
        max_body_bytes: int,
        count: Callable[[str, int], None],
    ) -> None:
        """count: told the path and the status of each answer."""
        self._app, self._api_key, self._max_body_bytes = app, api_key, max_body_bytes
        self._host_names = {name.lower() for name in host_names}
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope["path"], message["status"])
            await send(message)

        try:
            self._check(Headers(scope=scope), scope["path"])
        except ApiError as error:
            if error.status == 413:
                await _discard(receive)
            reply = JSONResponse(error.body, error.status, error.headers)
            await reply(scope, receive, counted)
            return
        await self._app(scope, self._limited(receive), counted)

    def _check(self, headers: Headers, path: str) -> None:
        host = headers.get("host", "")
        if _hostname(f"//{host}") not in self._host_names:
            raise ApiError(
                403,
                f"host ({host[:80]!r}) is not a name of this server; use its address, or name the"
                " host in serve.host_names",
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            raise ApiError(
                403, "requests from pages of other sites are refused; use a client of your own"
            )
        if self._api_key is not None and path.startswith(GUARDED):
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(
                given.strip().encode("latin-1"), self._api_key.encode()
            ):
                raise ApiError(
                    401,
                    "the API key is missing or wrong; send Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """The same body, with an end to what it may be where no length was announced."""
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                if message.get("more_body"):
                    await _discard(receive)
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body has more than {self._max_body_bytes} bytes; send a shorter one"
        )


async def _discard(receive: Receive) -> None:
    """Read on for a moment: a client that is cut off while it sends does not see the answer."""
    num_bytes = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while num_bytes < DISCARDED_BYTES:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # half a bracket
        return None

"""Runs the local Prefect server, which answers on loopback, and only to what was meant for it.

Prefect itself checks neither the Host header nor, beyond CORS, the Origin. A page of another site
could then send requests to it, under its own name or, by DNS rebinding, as if it were this one.
Both are refused here before Prefect sees them, for web sockets too. The password is Prefect's own
check (`PREFECT_SERVER_API_AUTH_STRING`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.services.access import HOST_NAMES, own_origins
from flows.services.registry import EVERY_S, ServiceError, end_if_dropped


class OwnOriginMiddleware:
    """Refuses what a page of another site sends; programs send no Origin."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = (
            Headers(scope=scope).get("origin") if scope["type"] in ("http", "websocket") else None
        )
        if origin is None or origin in self._origins:
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse("Invalid origin header", status_code=403)(scope, receive, send)


def _end_with_state(state: Path) -> None:
    """End this server when it is not that of its state folder any more; nobody else would."""
    while True:
        time.sleep(EVERY_S)
        # What cannot be read now may be readable again; whoever changes it says what is wrong.
        with contextlib.suppress(OSError, ServiceError):
            end_if_dropped(state, "server", 0.0)


def main(port: int, state: Path) -> None:
    settings = get_current_settings().server
    if not settings.api.auth_string:
        raise SystemExit(
            "PREFECT_SERVER_API_AUTH_STRING is not set; `textmill up` starts this server"
        )
    app = create_app(final=True)
    app.add_middleware(OwnOriginMiddleware, origins=own_origins(port))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOST_NAMES, www_redirect=False)
    threading.Thread(target=_end_with_state, args=(state,), daemon=True).start()
    # As `prefect server start` runs it.
    uvicorn.run(
        app,
        host=HOST_NAMES[0],
        port=port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

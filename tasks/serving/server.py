"""Starts the server: loads the model, listens, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llm_core.config import ConfigError
from llm_core.printing import show
from tasks.serving.config import ServeConfig
from tasks.serving.endpoints import PAGE_FILES, Service
from tasks.serving.failures import ApiError
from tasks.serving.guards import LOOPBACK_NAMES, Guards

ANY_ADDRESS = ("0.0.0.0", "::")


def make_app(service: Service, config: ServeConfig, api_key: str | None = None) -> Starlette:
    """The application. Its lifespan is that of the engine's thread."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await service.worker.close()

    routes = [
        *(Route(path, service.page) for path in PAGE_FILES),
        Route("/health", service.health),
        Route("/metrics", service.show_metrics),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
        Route("/v1/completions", service.completions, methods=["POST"]),
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
    ]
    own = () if config.host in ANY_ADDRESS else (config.host,)
    names = {*LOOPBACK_NAMES, *own, *config.host_names}
    guards = Middleware(
        Guards, host_names=names, api_key=api_key, max_body_bytes=config.max_body_bytes
    )
    handlers = {ApiError: _refuse, HTTPException: _refuse_http, Exception: _confess}
    return Starlette(
        routes=routes, middleware=[guards], exception_handlers=handlers, lifespan=lifespan
    )


def listen(config: ServeConfig) -> socket.socket:
    """The socket to serve on. Raises ConfigError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host}, port {config.port} ({error.strerror}); set serve.host"
            " and serve.port to an address of this machine that is free, or port to 0"
        ) from error


def run_app(app: Starlette, config: ServeConfig, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; then take no more, and end what runs or cut it off."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=config.drain_s,  # type: ignore[arg-type]
    )
    show(f"http://{host}:{listening.getsockname()[1]}", flush=True)
    asyncio.run(DrainingServer(settings).serve(sockets=[listening]))


class DrainingServer(uvicorn.Server):
    """Ends normally on a signal, where uvicorn raises it again once everything is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        stops = (signal.SIGTERM, signal.SIGINT)
        before = {stop: signal.signal(stop, self.handle_exit) for stop in stops}
        try:
            yield
        finally:
            for stop, handler in before.items():
                signal.signal(stop, handler)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _refuse(
        request, ApiError(error.status_code, f"{request.url.path}: {error.detail}")
    )


async def _confess(request: Request, error: Exception) -> Response:
    """The traceback goes to the log, by uvicorn."""
    return await _refuse(request, ApiError(500, f"a defect of the server ({type(error).__name__})"))

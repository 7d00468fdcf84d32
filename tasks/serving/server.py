"""Starts the server: loads the model, listens, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llm_core.config import ConfigError
from llm_core.device import decode_threads
from llm_core.huggingface.export import CONFIG_FILE, read_shape
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.guessing import GuessingEngine
from llm_core.infer.ranks.team import Models
from llm_core.printing import show
from tasks.evaluation.config import GenerateConfig
from tasks.evaluation.drafts import open_draft
from tasks.evaluation.generate import eos_ids
from tasks.evaluation.models import open_models
from tasks.serving.config import ServeConfig, read_api_key
from tasks.serving.endpoints import PAGE_FILES, Service
from tasks.serving.failures import ApiError
from tasks.serving.guards import LOOPBACK_NAMES, Guards
from tasks.serving.json_answers import JsonAnswers
from tasks.serving.metrics import Metrics
from tasks.serving.worker import Worker
from tasks.tokenizer.chat_template import ChatTemplate, load_chat_template
from tasks.tokenizer.encoder import load_tokenizer
from tasks.tokenizer.template_files import NoTemplate

ANY_ADDRESS = ("0.0.0.0", "::")
BURST_TOKENS = 8
SWITCH_S = 5e-4
"""How long a thread may run Python while another wants to: a step of the engine is over in a few
milliseconds, and the next one must not wait as long for the loop that sends tokens."""
STALLED_S = 60
"""How long a client may take nothing of what is sent to it before its connection is cut."""
CACHED_PROMPTS = 4
"""Requests of the model's full length that the cache holds where it is not set."""


def serve_folder(folder: Path, name: str, config: ServeConfig, generate: GenerateConfig) -> None:
    """Serve the model of a Hugging Face folder until SIGTERM or Ctrl-C.

    name: that of the model where the settings give none. Raises ConfigError before anything is
    served.
    """
    api_key = None if config.api_key_file is None else read_api_key(config.api_key_file)
    with (
        listen(config) as listening,
        open_models(generate.tensor_parallel, generate.device, _stop) as models,
        decode_threads(read_shape(folder).num_parameters()),
    ):
        service = load_service(folder, name, config, generate, models)
        run_app(make_app(service, config, api_key), config, listening)


def _stop() -> None:
    """End the server from another thread, as when its model is incomplete. Before it serves, the
    loading fails by itself."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGTERM)


def load_service(
    folder: Path, name: str, config: ServeConfig, generate: GenerateConfig, models: Models
) -> Service:
    """The model of a folder with its engine, which starts with the application."""
    device = models.device
    is_long = config.dtype == "float32" or (config.dtype == "auto" and device.type == "cpu")
    model = models.load(folder, torch.float32 if is_long else torch.bfloat16)
    tokenizer = load_tokenizer(folder)
    template: ChatTemplate | NoTemplate
    try:
        template = load_chat_template(folder, tokenizer, config.chat_template)
    except NoTemplate as lack:
        template = lack
    longest = model.config.max_seq_len
    block = EngineConfig.block_tokens
    usual = min(CACHED_PROMPTS * (-(-longest // block) * block), EngineConfig.cache_tokens)
    cache_tokens = config.cache_tokens or usual
    settings = EngineConfig(
        cache_tokens=cache_tokens,
        budget_tokens=config.budget_tokens,
        max_running=config.max_running,
        cache=config.cache,
        prefix_cache=config.prefix_cache,
        # Who comes, goes or streams waits for the end of a burst.
        burst_tokens=BURST_TOKENS if device.type == "cuda" else 1,
    )
    ends = eos_ids(folder, model, tokenizer)
    if config.draft is None:
        engine = Engine(model, settings, ends)
    else:
        draft = open_draft(config.draft, model, tokenizer)
        engine = GuessingEngine(model, settings, ends, draft)
    engine.warm_up()
    metrics = Metrics()
    metrics.watch(engine)
    return Service(
        name=config.model_name or name,
        created=int((folder / CONFIG_FILE).stat().st_mtime),
        tokenizer=tokenizer,
        vocab_size=model.config.vocab_size,
        max_seq_len=min(longest, cache_tokens // block * block),
        chat_template=template,
        worker=Worker(engine, config.max_running + config.max_waiting, metrics),
        metrics=metrics,
        max_choices=min(config.max_choices, config.max_running + config.max_waiting),
        json_answers=JsonAnswers(tokenizer, model.config.vocab_size, ends, device),
        defaults=generate.sampling(),
        default_stops=generate.stop,
    )


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
    paths = {route.path for route in routes}

    def count(path: str, status: int) -> None:
        # Any path may be asked for, and each label is kept.
        service.metrics.requests.labels(path if path in paths else "other", status).inc()

    guards = Middleware(
        Guards,
        host_names=names,
        api_key=api_key,
        max_body_bytes=config.max_body_bytes,
        count=count,
    )
    handlers = {ApiError: _refuse, HTTPException: _refuse_http, Exception: _confess}
    return Starlette(
        routes=routes, middleware=[guards], exception_handlers=handlers, lifespan=lifespan
    )


def listen(config: ServeConfig) -> socket.socket:
    """The socket to serve on. Raises ConfigError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listening = socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host}, port {config.port} ({error.strerror}); set serve.host"
            " and serve.port to an address of this machine that is free, or port to 0"
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
        stalled_ms = round(STALLED_S * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stalled_ms)
    return listening


def run_app(app: Starlette, config: ServeConfig, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; then take no more, and end what runs or cut it off."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=config.drain_s,  # type: ignore[arg-type]
    )
    sys.setswitchinterval(SWITCH_S)
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
    return await _refuse(request, ApiError(500, f"internal server error ({type(error).__name__})"))

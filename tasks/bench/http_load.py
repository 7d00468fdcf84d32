"""Puts a server under load over HTTP, as `llm_core.bench.load` does an engine.

Prompts are sent as ids, so that their length is exact; answers are streamed, and their tokens are
those that the server counts (`usage`), not those of a text encoded again. A token is there when the
chunk with its text is: a chunk without text, such as one that only names the speaker, is none. Each
open request has a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from llm_core.bench.latency import Answered
from llm_core.bench.load import Asked
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.process import terminate_with_parent
from tasks.evaluation.config import GenerateConfig
from tasks.serving.config import ServeConfig

START_S, STOP_S = 600.0, 30.0
"""What a server has to load its model, and to end."""
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


def load_server(
    url: str, asked: Sequence[Asked], params: SamplingParams, concurrency: int | None = None
) -> list[Answered]:
    """Answer all requests by the server at `url`; concurrency as in `load_engine`."""
    return asyncio.run(_load(url, asked, params, concurrency))


async def _load(
    url: str, asked: Sequence[Asked], params: SamplingParams, concurrency: int | None
) -> list[Answered]:
    open_at_once = asyncio.Semaphore(concurrency or len(asked))
    bodies = [_body(each, params) for each in asked]
    timeout = aiohttp.ClientTimeout(total=None, sock_read=START_S)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as session:
        started = time.perf_counter()

        async def answer(number: int) -> Answered:
            due_at = started + asked[number].at_s
            if concurrency is None:
                await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            async with open_at_once:
                now = time.perf_counter()
                answered = Answered(due_at if concurrency is None else now, now)
                await _ask(session, f"{url}/v1/completions", bodies[number], answered)
            return answered

        return await asyncio.gather(*map(answer, range(len(asked))))


def _body(asked: Asked, params: SamplingParams) -> bytes:
    sampling = {name: getattr(params, name) for name in SAMPLING}
    return orjson.dumps(
        {
            "prompt": asked.prompt_ids,
            "max_tokens": asked.new_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
    )


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes, answered: Answered) -> None:
    """Fill in what came; a failure is noted in the answer."""
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(url, data=body, headers=headers) as response:
            if response.status != 200:
                answered.failure = f"HTTP {response.status}: {(await response.text())[:200]}"
                return
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _take(answered, orjson.loads(line[len(b"data: ") :]))
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
        answered.failure = f"{type(error).__name__}: {error}"
    if answered.failure is None and not answered.num_tokens:
        answered.failure = "the stream ended without usage"


def _take(answered: Answered, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        answered.failure = str(chunk["error"].get("message"))
    if any(choice["text"] for choice in chunk.get("choices", ())):
        answered.chunks.append((time.perf_counter(), 1))
    if chunk.get("usage"):
        answered.num_tokens = chunk["usage"]["completion_tokens"]


@contextlib.contextmanager
def served(folder: Path, config: ServeConfig, generate: GenerateConfig) -> Iterator[str]:
    """The URL of a server of `folder` in a process of its own, until the block ends.

    Raises RuntimeError where the server ends before it listens.
    """
    start = multiprocessing.get_context("spawn")
    receiver, sender = start.Pipe(duplex=False)
    process = start.Process(
        target=_serve, args=(folder, config, generate, sender, os.getpid()), daemon=True
    )
    process.start()
    sender.close()
    try:
        if not receiver.poll(START_S):
            raise RuntimeError(f"the server of {folder} did not listen within {START_S:.0f} s")
        try:
            port = receiver.recv_bytes()
        except EOFError as error:
            raise RuntimeError(f"the server of {folder} ended before it listened") from error
        yield f"http://127.0.0.1:{port.decode()}"
    finally:
        process.terminate()
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(
    folder: Path, config: ServeConfig, generate: GenerateConfig, ready: Connection, parent: int
) -> None:
    from llm_core.device import choose_device, decode_threads
    from llm_core.huggingface.export import read_shape
    from llm_core.infer.ranks.team import OneProcess
    from tasks.serving.server import listen, load_service, make_app, run_app

    terminate_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    # The address is for the parent alone.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        listen(config) as listening,
        decode_threads(read_shape(folder).num_parameters()),
    ):
        models = OneProcess(choose_device(generate.device))
        app = make_app(load_service(folder, folder.name, config, generate, models), config)
        ready.send_bytes(str(listening.getsockname()[1]).encode())
        ready.close()
        run_app(app, config, listening)

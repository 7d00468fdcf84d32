"""Small models behind a real server in this process, and folders to serve."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from llm_core.huggingface.export import export_model
from llm_core.infer.ranks.team import OneProcess
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tasks.evaluation.config import GenerateConfig
from tasks.runtime.code import ROOT
from tasks.serving.config import ServeConfig
from tasks.serving.endpoints import Service
from tasks.serving.server import listen, load_service, make_app
from tests.support.data.foreign_tokenizers import foreign_tokenizer, publish_tokenizer

NAME = "small"


def publish_model(folder: Path, chat_template: str | None = None, max_seq_len: int = 512) -> Path:
    """A byte-level model that begins texts with `<s>` and ends them with `</s>`, of random weights
    large enough that its choices differ."""
    publish_tokenizer("gpt2", folder, chat_template)
    tokenizer = foreign_tokenizer("gpt2")
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        dim=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        ffn_dim=64,
        max_seq_len=max_seq_len,
        tied_embeddings=False,
    )
    model = Transformer(config)
    init_weights(model, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    export_model(config, model.state_dict(), folder, eos_id=tokenizer.token_to_id("</s>"))
    return folder


@dataclass
class Served:
    """A running server."""

    url: str
    service: Service
    listening: socket.socket
    api_key: str | None = None

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextmanager
def served(
    folder: Path,
    config: ServeConfig | None = None,
    api_key: str | None = None,
    generate: GenerateConfig | None = None,
) -> Iterator[Served]:
    """Serve a folder on a free port until the block ends."""
    config = dataclasses.replace(config or ServeConfig(), port=0)
    generate = generate or GenerateConfig(temperature=1.0, top_p=1.0)
    service = load_service(folder, NAME, config, generate, OneProcess(torch.device("cpu")))
    settings = uvicorn.Config(
        make_app(service, config, api_key), log_config=None, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(settings)
    with listen(config) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield Served(url, service, listening, api_key)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving(folder: Path, *overrides: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`textmill serve` in a process of its own, and its URL; killed when the block ends."""
    words = ["serve", f"folder={folder}", "serve.port=0", *overrides]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        yield process, url
    finally:
        process.kill()
        process.wait()

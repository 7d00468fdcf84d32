"""Sets how a model is served: the settings of `tasks.serving.server`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_core.config import ConfigError, check_bounds

MIN_KEY_CHARS = 16


@dataclass(frozen=True)
class ServeConfig:
    """Where a model is served, to whom, and with which capacity."""

    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach needs `api_key_file`."""
    port: int = 8000
    """Port to listen on. 0: any free one, which is printed."""
    host_names: tuple[str, ...] = ()
    """Further host names of the server, such as that of a proxy. Requests to other names are
    refused, as are requests from pages of other sites."""
    api_key_file: Path | None = None
    """File whose only line is the API key. Null: no key is required."""
    model_name: str | None = None
    """Name of the model in requests and answers. Null: the name of its folder."""
    chat_template: Path | None = None
    """Jinja template that turns chat messages into a prompt. Null: the model's own."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights. auto: bfloat16 on a GPU, float32 elsewhere."""
    max_running: int = 16
    """Answers generated at once; further ones wait."""
    max_waiting: int = 64
    """Answers that may wait. Further requests are refused with 429."""
    max_choices: int = 64
    """Most answers to one request: its prompts times `n`. Capped at `max_running` plus
    `max_waiting`."""
    cache_tokens: int | None = None
    """Tokens that the cache holds for all prompts and answers; it also bounds each request. Null:
    four times the model's context length, at most 16,384."""
    budget_tokens: int = 512
    """Tokens of prompts and answers computed in one pass; longer prompts are split."""
    cache: Literal["model", "int8"] = "model"
    """Number format of the cache. int8: a quarter to half of the memory, with a scale per token
    and head."""
    prefix_cache: bool = True
    """Whether prompts share the computation of a common prefix."""
    draft: str | None = None
    """What guesses several tokens of greedy answers, for the model to check at once: ngram, or the
    folder of a smaller model with the same tokenizer, which guesses while one answer is written.
    Null: nothing."""
    max_body_bytes: int = 4 << 20
    """Largest request body."""
    drain_s: float = 30.0
    """On SIGTERM or Ctrl-C, time that running requests have to finish; new ones are refused."""

    def __post_init__(self) -> None:
        check_bounds(self, port=(0, 65535), max_running=(1, None), max_waiting=(0, None))
        check_bounds(self, max_choices=(1, None), cache_tokens=(1, None), budget_tokens=(2, None))
        check_bounds(self, max_body_bytes=(1024, 1 << 30), drain_s=(0, None))
        if not self.is_loopback and self.api_key_file is None:
            raise ConfigError(
                f"host ({self.host}) can be reached from other machines, which requires a key;"
                " write one to a file that only you can read, and set api_key_file"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_api_key(file: Path) -> str:
    """The key in a file that only its owner reads. Raises ConfigError."""
    if not file.is_file():
        raise ConfigError(f"api_key_file ({file}) is not a file; write a key to it")
    if file.stat().st_mode & 0o077:
        raise ConfigError(f"api_key_file ({file}) can be read by others; chmod 600 it")
    try:
        key = file.read_text("ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"api_key_file ({file}) must be ASCII; write another key") from error
    if len(key) < MIN_KEY_CHARS or not key.isprintable() or " " in key:
        raise ConfigError(
            f"api_key_file ({file}) must hold one word of at least {MIN_KEY_CHARS} characters; make"
            " one with: openssl rand -hex 32"
        )
    return key

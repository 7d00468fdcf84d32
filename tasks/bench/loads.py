"""Measures loads, on the engine and over HTTP: a fixed number of open requests, and Poisson
arrivals at shares of the rate that was answered then.

Each row is `llm_core.bench.latency.summarise` with "target" (engine, http), "kind" (closed, open),
"concurrency" or "rate_per_s" with "arrival_frac", and a histogram of the gaps between tokens. All
loads ask the same requests, whose answers are sampled. What is measured first is a warm-up, and
left out. Over HTTP a server of the model runs in a process of its own, with the engine's settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llm_core.bench.latency import Answered, summarise
from llm_core.bench.load import Asked, load_engine, random_requests
from llm_core.config import ConfigError
from llm_core.infer.cache.rows import place_of
from llm_core.infer.choice.sampling import SamplingParams
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.model.transformer import Transformer
from tasks.bench.config import BenchConfig
from tasks.bench.http_load import load_server, served
from tasks.evaluation.config import GenerateConfig
from tasks.runtime.artifact import ArtifactMismatch
from tasks.serving.config import ServeConfig
from tasks.serving.server import BURST_TOKENS
from tasks.tokenizer.encoder import load_tokenizer

Load = Callable[[Sequence[Asked], SamplingParams, int | None], list[Answered]]
Row = dict[str, Any]

SAMPLED = SamplingParams(temperature=0.8, top_k=200)
NUM_WARM_UP = 4
BUDGET_TOKENS = 512
BINS_PER_DECADE = 8


def measure_loads(
    model: Transformer, folder: Path, config: BenchConfig
) -> tuple[list[Row], list[Row]]:
    """Rows, and what was left out with the reason."""
    if not config.concurrencies:
        return [], []
    longest = config.load_prompt_tokens[1] + config.load_new_tokens[1]
    if longest > model.config.max_seq_len:
        reason = f"{longest} tokens of a request exceed max_seq_len ({model.config.max_seq_len})"
        return [], [{"load": "all", "reason": reason}]
    settings = engine_settings(config, place_of(model)[1].type == "cuda")
    engine = Engine(model, settings, [])

    def on_engine(
        asked: Sequence[Asked], params: SamplingParams, concurrency: int | None
    ) -> list[Answered]:
        return load_engine(engine, asked, params, concurrency)

    rows = _loads("engine", on_engine, model.config.vocab_size, config)
    if not config.over_http:
        return rows, []
    if config.tensor_parallel > 1:
        return rows, [{"load": "http", "reason": "several ranks are measured without a server"}]
    try:
        load_tokenizer(folder)
    except (ArtifactMismatch, ConfigError) as lack:
        return rows, [{"load": "http", "reason": str(lack)}]
    return rows + _over_http(model, folder, settings, config), []


def engine_settings(config: BenchConfig, on_gpu: bool) -> EngineConfig:
    """Room for all that is open at once, and bursts as the server has them."""
    block = EngineConfig.block_tokens
    longest = -(-(config.load_prompt_tokens[1] + config.load_new_tokens[1]) // block) * block
    return EngineConfig(
        cache_tokens=min(config.load_requests, EngineConfig.max_running) * longest,
        budget_tokens=BUDGET_TOKENS,
        burst_tokens=BURST_TOKENS if on_gpu else 1,
    )


def _over_http(
    model: Transformer, folder: Path, settings: EngineConfig, config: BenchConfig
) -> list[Row]:
    dtype = str(place_of(model)[0]).removeprefix("torch.")
    serve = ServeConfig(
        port=0,
        dtype="bfloat16" if dtype == "bfloat16" else "float32",
        max_running=settings.max_running,
        max_waiting=config.load_requests,
        cache_tokens=settings.cache_tokens,
        budget_tokens=settings.budget_tokens,
    )
    with served(folder, serve, GenerateConfig(device=config.device)) as url:

        def on_server(
            asked: Sequence[Asked], params: SamplingParams, concurrency: int | None
        ) -> list[Answered]:
            return load_server(url, asked, params, concurrency)

        return _loads("http", on_server, model.config.vocab_size, config)


def _loads(target: str, load: Load, vocab_size: int, config: BenchConfig) -> list[Row]:
    def asked(count: int, seed: int, rate_per_s: float | None = None) -> list[Asked]:
        lengths = config.load_prompt_tokens, config.load_new_tokens
        return random_requests(count, *lengths, vocab_size, seed, rate_per_s)

    num_warm_up = min(NUM_WARM_UP * max(config.concurrencies), config.load_requests)
    load(asked(num_warm_up, config.seed), SAMPLED, None)
    rows, fastest = [], 0.0
    # Prompts of their own for each load: none finds its prefix in the cache.
    for number, concurrency in enumerate(config.concurrencies, start=1):
        requests = asked(config.load_requests, config.seed + number)
        row = _row(target, load(requests, SAMPLED, concurrency))
        rows.append(row | {"kind": "closed", "concurrency": concurrency})
        fastest = max(fastest, row["requests_per_s"])
    for number, frac in enumerate(config.arrival_fracs, start=len(rows) + 1):
        rate_per_s = frac * fastest
        requests = asked(config.load_requests, config.seed + number, rate_per_s)
        row = _row(target, load(requests, SAMPLED, None))
        rows.append(
            row | {"kind": "open", "arrival_frac": frac, "rate_per_s": float(f"{rate_per_s:.6g}")}
        )
    return rows


def _row(target: str, answered: Sequence[Answered]) -> Row:
    gaps_s = [gap for each in answered if each.chunks for gap in each.gaps_s]
    waits_s = [float(f"{each.ttft_s:.6g}") for each in answered if each.chunks]
    rest = {"itl_histogram": histogram(gaps_s), "samples": {"ttft_s": waits_s}}
    return {"target": target} | summarise(answered) | rest


def histogram(gaps_s: Sequence[float]) -> Row | None:
    """Counts between edges that grow by the same factor; gaps of zero belong to the first."""
    known = [gap for gap in gaps_s if gap > 0]
    if not known:
        return None
    first = math.floor(math.log10(min(known)) * BINS_PER_DECADE)
    last = math.floor(math.log10(max(known)) * BINS_PER_DECADE) + 1
    edges_s = 10.0 ** (np.arange(first, last + 1) / BINS_PER_DECADE)
    counts, _ = np.histogram(np.clip(gaps_s, edges_s[0], edges_s[-1]), edges_s)
    return {"edges_s": [float(f"{edge:.6g}") for edge in edges_s], "counts": counts.tolist()}

"""Times one engine on one case: what `benchmarks.engine.infer` runs in a process of its own.

Each measure checks what it will time by a greedy pass over the same lengths, which is also its
warm-up, and gives a row: "name", "card", "correct", "difference" and "behind" of the checks, and
the figures of the mode, which are None where a check failed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from benchmarks.engine.infer_models import (
    cache_difference,
    random_model,
    shape_config,
    step_bytes,
)
from benchmarks.engine.infer_parts import choosing_s, part_times
from benchmarks.engine.train import Row
from llm_core.bench.answers import Behind, judge
from llm_core.bench.latency import summarise
from llm_core.bench.load import load_engine, random_requests
from llm_core.device import choose_device, device_name, set_threads, synchronize
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.engine import Engine, EngineConfig
from llm_core.infer.equivalence import TOLERANCE
from llm_core.profiling.roofline import kv_bytes_per_token, measure_bandwidth

if TYPE_CHECKING:
    from benchmarks.engine.infer import Case

SAMPLED = SamplingParams(temperature=0.8, top_k=200)
"""As gpt-fast samples."""
PREFIX_TOKENS, OWN_TOKENS = 1000, 24
BLOCK = EngineConfig.block_tokens


class _Subject:
    """The model of a case with what its rows have in common."""

    def __init__(self, case: Case, longest: int) -> None:
        self.device = choose_device("auto")
        set_threads(case.threads, 1)
        self.config = shape_config(case.shape)
        # Before the model: it takes room of its own.
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.bandwidth = measure_bandwidth(self.device, dtype)
        length = min(longest, 1024)
        self.difference = cache_difference(self.config, case.batch, length - 8, 8, self.device)
        self.model = random_model(self.config, case.weights, self.device)
        self.step_bytes = step_bytes(self.model)
        self.dtype = self.model.norm.weight.dtype

    def row(self, case: Case, behind: Behind, figures: Row) -> Row:
        correct = self.difference <= TOLERANCE and behind.is_right
        on_gpu = self.device.type == "cuda"
        return {
            "name": "textmill",
            "mode": case.mode,
            "model": case.shape,
            "weights": case.weights,
            "card": device_name(self.device),
            "correct": correct,
            "difference": self.difference,
            "behind": round(behind.worst, 4),
            "behind_allowed": round(behind.allowed, 4),
            "bandwidth_tb_s": round(self.bandwidth / 1e12, 4),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None,
        } | (figures if correct else dict.fromkeys(figures))

    def prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        shape = count, length
        return torch.randint(0, self.config.vocab_size, shape, generator=generator).tolist()  # type: ignore[no-any-return]

    def answer(
        self, engine: Engine, prompts: Sequence[Sequence[int]], limits: Sequence[int]
    ) -> tuple[Behind, float]:
        """(how far greedy answers lie behind, seconds until tokens after the first were there)."""
        began = time.perf_counter()
        requests = [engine.submit(p, GREEDY, n) for p, n in zip(prompts, limits, strict=True)]
        start_s = 0.0
        while engine.busy:
            engine.step()
            if not start_s and any(len(request.answers[0]) > 1 for request in requests):
                start_s = time.perf_counter() - began
        return judge(self.model, prompts, [r.answers[0] for r in requests]), start_s


def decode(case: Case) -> Row:
    """Tokens after the first: rows start together and go in step."""
    subject = _Subject(case, case.prompt + case.new)
    began = time.perf_counter()
    # One block to spare, so that the last burst of a row is never cut short.
    row_tokens = (1 - -(case.prompt + case.new) // BLOCK) * BLOCK
    engine = Engine(
        subject.model,
        EngineConfig(
            cache_tokens=case.batch * row_tokens,
            budget_tokens=max(8192, case.batch * case.prompt) + 1,
            max_running=max(64, case.batch),
            prefix_cache=False,
        ),
        [],
    )
    made_s = time.perf_counter() - began
    prompts = subject.prompts(case.batch, case.prompt, 0)
    behind, start_s = subject.answer(engine, prompts, [case.new] * case.batch)
    clock: Callable[[], float] = (
        time.perf_counter if subject.device.type == "cuda" else time.process_time
    )
    ttft_s, step_s, cost_s = [], [], []
    for repeat in range(case.repeats):
        for prompt in subject.prompts(case.batch, case.prompt, repeat + 1):
            engine.submit(prompt, SAMPLED, case.new)
        synchronize(subject.device)
        began, num_told = time.perf_counter(), 0
        while num_told < case.batch:
            num_told += len(engine.step())
        first, first_cost = time.perf_counter(), clock()
        while engine.busy:
            engine.step()
        ttft_s.append(first - began)
        step_s.append((time.perf_counter() - first) / (case.new - 1))
        cost_s.append((clock() - first_cost) / (case.new - 1))
    step = statistics.median(step_s)
    middle = case.prompt + case.new // 2
    cache = case.batch * middle * kv_bytes_per_token(subject.config, subject.dtype.itemsize)
    figures: Row = {
        "batch": case.batch,
        "tok_s": round(case.batch / statistics.median(cost_s), 1),
        "ttft_ms": round(statistics.median(ttft_s) * 1e3, 2),
        "tpot_ms": round(step * 1e3, 4),
        "mbu": round((subject.step_bytes + cache) / step / subject.bandwidth, 4),
        "start_s": round(made_s + start_s, 4),
    }
    if subject.device.type == "cpu":
        costs_s = choosing_s(subject.model, case.batch)
        shares = {kind: s / statistics.median(cost_s) for kind, s in costs_s.items()}
        figures["choosing_fracs"] = {kind: round(share, 4) for kind, share in shares.items()}
        figures["choosing_frac"] = round(max(shares.values()), 4)
    return subject.row(case, behind, figures)


def load(case: Case) -> Row:
    """Requests of all lengths at once."""
    subject = _Subject(case, sum(most for _, most in case.ranges))
    engine = Engine(subject.model, _load_config(case, 8192), [])
    behind = _check_load(subject, case, engine)
    rows = []
    for repeat in range(case.repeats):
        asked = random_requests(
            case.requests, *case.ranges, subject.config.vocab_size, seed=repeat + 1
        )
        rows.append(summarise(load_engine(engine, asked, SAMPLED)))
    return subject.row(case, behind, _load_figures(rows))


def _load_config(case: Case, budget_tokens: int, burst_tokens: int = 0) -> EngineConfig:
    longest = -(-sum(most for _, most in case.ranges) // BLOCK) * BLOCK
    return EngineConfig(
        cache_tokens=min(case.requests, 64) * longest,
        budget_tokens=budget_tokens,
        burst_tokens=burst_tokens,
    )


def _check_load(subject: _Subject, case: Case, engine: Engine) -> Behind:
    asked = random_requests(case.requests, *case.ranges, subject.config.vocab_size, seed=0)
    prompts = [each.prompt_ids for each in asked]
    return subject.answer(engine, prompts, [each.new_tokens for each in asked])[0]


def _load_figures(rows: Sequence[dict[str, Any]]) -> Row:
    middle = sorted(rows, key=lambda row: row["tok_s"])[len(rows) // 2]
    ttft_s = middle["ttft_s"]
    return {
        "tok_s": middle["tok_s"],
        # Fewer than seven requests have no median.
        "ttft_ms": round((ttft_s["p50"] or ttft_s["mean"]) * 1e3, 2),
        "mbu": None,
        "failed": sum(row["failed"] for row in rows),
        **{name: middle[name] for name in ("output_tokens", "ttft_s", "tpot_s", "itl_s", "e2e_s")},
    }


def prefix(case: Case) -> Row:
    """Time to the first token of prompts that begin alike."""
    subject = _Subject(case, PREFIX_TOKENS + OWN_TOKENS)
    engine = Engine(subject.model, EngineConfig(), [])
    cold, warm, found = [], [], list[Behind]()
    for repeat in range(2 + case.repeats):
        (shared,) = subject.prompts(1, PREFIX_TOKENS, repeat)
        own = subject.prompts(4, OWN_TOKENS, 1000 + repeat)
        times = [_first_token_s(engine, [*shared, *each]) for each in own]
        if repeat < 2:  # warm-up
            prompts = [[*shared, *each] for each in own]
            found.append(subject.answer(engine, prompts, [8] * len(own))[0])
            continue
        cold.append(times[0])
        warm += times[1:]
    figures = {
        "tok_s": None,
        "mbu": None,
        "ttft_ms": round(statistics.median(warm) * 1e3, 2),
        "peer_ttft_ms": round(statistics.median(cold) * 1e3, 2),
        "ratio": round(statistics.median(cold) / statistics.median(warm), 3),
    }
    return subject.row(case, min(found, key=lambda behind: behind.is_right), figures)


def _first_token_s(engine: Engine, prompt: Sequence[int]) -> float:
    began = time.perf_counter()
    engine.submit(prompt, SAMPLED, 1)
    while engine.busy:
        engine.step()
    return time.perf_counter() - began


def start(case: Case) -> Row:
    """Seconds from the start of this process to a first token, and from making the engine to tokens
    after the first, with all that is compiled and captured for them."""
    device = choose_device("auto")
    set_threads(case.threads, 1)
    config = shape_config(case.shape)
    model = random_model(config, case.weights, device)
    prompt = torch.arange(case.prompt).remainder(config.vocab_size).tolist()
    began = time.perf_counter()
    engine = Engine(model, EngineConfig(cache_tokens=8192), [])
    engine.submit(prompt, SAMPLED, 2)
    engine.step()
    first_s = time.perf_counter() - began
    process_s = time.time() - psutil.Process().create_time()
    while engine.busy:
        engine.step()
    start_s = time.perf_counter() - began
    del engine, model
    subject = _Subject(case, case.prompt + case.new)
    engine = Engine(subject.model, EngineConfig(cache_tokens=8192), [])
    behind, _ = subject.answer(engine, [prompt], [case.new])
    figures = {
        "tok_s": None,
        "mbu": None,
        "ttft_ms": round(first_s * 1e3, 1),
        "process_s": round(process_s, 2),
        "start_s": round(start_s, 2),
    }
    return subject.row(case, behind, figures)


def http(case: Case) -> Row:
    """The load over a server, and on an engine as the server has it, in turn."""
    from benchmarks.engine.infer_folder import write_folder
    from tasks.bench.http_load import load_server, served
    from tasks.evaluation.config import GenerateConfig
    from tasks.serving.config import ServeConfig
    from tasks.serving.server import BURST_TOKENS

    subject = _Subject(case, sum(most for _, most in case.ranges))
    burst_tokens = BURST_TOKENS if subject.device.type == "cuda" else 1
    settings = _load_config(case, 2048, burst_tokens)
    engine = Engine(subject.model, settings, [])
    behind = _check_load(subject, case, engine)
    config = ServeConfig(
        port=0,
        max_running=settings.max_running,
        max_waiting=case.requests,
        cache_tokens=settings.cache_tokens,
        budget_tokens=settings.budget_tokens,
        dtype="bfloat16" if subject.dtype == torch.bfloat16 else "float32",
    )
    rows: dict[str, list[dict[str, Any]]] = {"engine": [], "http": []}
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(subject.model, Path(name) / "model")
        with served(folder, config, GenerateConfig()) as url:
            for repeat in range(1 + case.repeats):
                asked = random_requests(
                    case.requests, *case.ranges, subject.config.vocab_size, seed=repeat + 1
                )
                found = {
                    "engine": summarise(load_engine(engine, asked, SAMPLED)),
                    "http": summarise(load_server(url, asked, SAMPLED)),
                }
                if repeat:  # the first warms the server up
                    for side, row in found.items():
                        rows[side].append(row)
    figures, alone = _load_figures(rows["http"]), _load_figures(rows["engine"])
    ratios = [h["tok_s"] / e["tok_s"] for h, e in zip(rows["http"], rows["engine"], strict=True)]
    figures |= {"peer_tok_s": alone["tok_s"], "peer_ttft_ms": alone["ttft_ms"]}
    return subject.row(case, behind, figures | {"ratio": round(statistics.median(ratios), 4)})


def parts(case: Case) -> Row:
    """Where passes spend their time."""
    subject = _Subject(case, PREFIX_TOKENS)
    figures = part_times(subject.model, 1 if subject.device.type == "cpu" else 64)
    return subject.row(
        case, Behind(0.0, 0.0), {"tok_s": None, "mbu": None, "ttft_ms": None, **figures}
    )


MEASURES: dict[str, Callable[[Case], Row]] = {
    "parts": parts,
    "decode": decode,
    "load": load,
    "prefix": prefix,
    "start": start,
    "http": http,
}

"""Times passes of an engine apart: how long the host is busy with one, and how long it takes until
the device is done.

Where both are alike the host sets the pace. Medians of milliseconds; the engine is warm.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from llm_core.device import synchronize
from llm_core.infer.bursts import Start
from llm_core.infer.cache.attention import any_length
from llm_core.infer.cache.paged import Pass
from llm_core.infer.choice.choosing import Choosers, choose
from llm_core.infer.choice.edits import logit_edits
from llm_core.infer.choice.sampling import GREEDY, SamplingParams
from llm_core.infer.config import EngineConfig
from llm_core.infer.engine import Engine
from llm_core.infer.few_tokens import Part
from llm_core.model.transformer import Transformer

REPEATS = 10
LENGTH = 1000
"""Tokens of a sequence in the cache."""
SAMPLED = SamplingParams(temperature=0.8, top_k=200)

KINDS = {
    "greedy": GREEDY,
    "temperature": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(top_k=50),
    "top_p": SamplingParams(top_p=0.9),
    "min_p": SamplingParams(min_p=0.05),
    "penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
    ),
}


@torch.inference_mode()
def choosing_s(model: Transformer, rows: int) -> dict[str, float]:
    """{kind of sampling: seconds of processor time until `rows` rows have a token}.

    Logits are those of random weights, which tell tokens little apart: top-p keeps most of them.
    """
    logits_BV = model.logits(torch.randn(rows, model.config.dim))
    steps_B = torch.zeros(rows, dtype=torch.int64)
    found = {}
    for kind, params in KINDS.items():
        edits = logit_edits(model.config.vocab_size, logits_BV.device)
        choosers = Choosers.of([params] * rows, range(rows), logits_BV.device)
        slots = [edits.take(params, range(100)) for _ in range(rows) if params.counts_tokens]
        elapsed_s = []
        for _ in range(REPEATS + 2):
            began = time.process_time()
            given_BV = logits_BV
            if slots:  # in a copy, as the engine does
                given_BV = logits_BV.clone()
                edits.apply(given_BV, dict(enumerate(slots)))
            ids = choose(given_BV, choosers, steps_B).tolist()
            if slots:
                edits.count(slots, ids)
            elapsed_s.append(time.process_time() - began)
        found[kind] = statistics.median(elapsed_s[2:])
    return found


def part_times(model: Transformer, most_rows: int) -> dict[str, float]:
    """{part: ms}. most_rows: of a decode step."""
    config = EngineConfig(cache_tokens=max(16, most_rows) * (LENGTH + 300), budget_tokens=8193)
    engine = Engine(model, config, [])
    engine.warm_up()
    blocks_each = (LENGTH + 300) // config.block_tokens

    def blocks(row: int) -> list[int]:
        return list(range(row * blocks_each, (row + 1) * blocks_each))

    def few(tokens: int, sequences: int) -> Callable[[], object]:
        parts = [
            Part([5] * (tokens // sequences), LENGTH, blocks(row), 0, (SAMPLED, 0))
            for row in range(sequences)
        ]
        return lambda: engine.few_tokens.run(parts)

    def decode(rows: int, steps: int) -> Callable[[], object]:
        starts = [Start(5, LENGTH, blocks(row), 1, (SAMPLED, 0)) for row in range(rows)]
        return lambda: engine.bursts.run(starts, steps)

    def prefill(sequences: int, tokens: int, before: int) -> Callable[[], object]:
        new, lengths = [[5] * tokens] * sequences, [before + tokens] * sequences
        tables = [blocks(row) for row in range(sequences)]

        def run() -> None:
            coming = Pass.of(new, lengths, tables, config.block_tokens, engine.device)
            engine.cache.begin(coming)
            with any_length():
                model.hidden(coming.ids_N[None], coming.positions_N[None], engine.cache)

        return run

    passes: dict[str, Callable[[], object]] = {}
    if engine.captures and engine.few_tokens.sizes:
        passes |= {f"few_{size}": few(size, 1) for size in (16, 24, 64, 256)}
        passes |= {"few_64_of_16": few(64, 16)}
    for rows in (1, 8, 16, 32, 64):
        if rows <= most_rows:
            passes |= {f"decode_{rows}": decode(rows, 1)}
    passes |= {
        "prefill_1x1000": prefill(1, LENGTH, 0),
        "prefill_1x24_behind_1000": prefill(1, 24, LENGTH),
    }
    if most_rows >= 16:
        passes |= {
            "prefill_4x500": prefill(4, 500, 0),
            "prefill_16x500": prefill(16, 500, 0),
            "prefill_16x250_behind_1000": prefill(16, 250, LENGTH),
        }
    with torch.inference_mode():
        return {name: value for each, run in passes.items() for name, value in _timed(each, run)}


def _timed(name: str, run: Callable[[], object]) -> list[tuple[str, float]]:
    host_s, all_s = [], []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for repeat in range(REPEATS + 2):
        synchronize(device)
        began = time.perf_counter()
        run()
        host = time.perf_counter() - began
        synchronize(device)
        if repeat >= 2:
            host_s.append(host)
            all_s.append(time.perf_counter() - began)
    return [
        (f"{name}_ms", round(statistics.median(all_s) * 1e3, 3)),
        (f"{name}_host_ms", round(statistics.median(host_s) * 1e3, 3)),
    ]

"""Measures generation speed and what the cache gains: prefill and decode apart, cached against
recomputed.

Every cell of the grid (batch, prompt tokens, new tokens) runs with each cache and without one, on
the same random prompts, given as ids and of exact length; the output length is fixed, end-of-text
is ignored. Caches alternate, forwards and backwards (ABBA), so that a drift of the machine meets
all. Without a cache, each new token costs a pass over everything so far. Logits are those of the
last position only. Sampling is argmax on the device.

The clock is read with the device idle, before and after each pass. Warm-up passes are excluded and
reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_core.bench.spread import DEFINITION, spread
from llm_core.device import synchronize
from llm_core.infer.cache.rows import MakeCache, decode, place_of, prefill
from llm_core.model.transformer import Transformer
from llm_core.profiling.roofline import (
    Peaks,
    Work,
    cached_step,
    full_pass,
    int8_bytes_per_token,
    kv_bytes_per_token,
    limits,
)
from llm_core.quantize.model import num_bytes

CACHED, UNCACHED = "cached", "uncached"
INT8 = "int8"
"""Name of the cache whose numbers have 8 bits."""
WARMUP_STEPS = 2

DEFINITIONS = {
    "prefill_s": (
        "seconds of the pass over all prompts of a batch, with the choice of the first token,"
        " without cache allocation"
    ),
    "prefill_tok_s": "batch x prompt_tokens / prefill_s",
    "step_s": (
        "seconds of one decode step: a pass that gives every row its next token, and the choice of"
        " that token"
    ),
    "decode_tok_s": (
        "batch x (new_tokens - 1) / sum of step_s in a repeat: all rows together; the first token"
        " belongs to prefill"
    ),
    "cached": (
        "a decode step computes one position per row and reads earlier keys and values from the"
        " cache that is named"
    ),
    "uncached": "a decode step computes all positions so far again, and logits of the last one",
    "median": "over repeats; for step_s over all steps of all repeats",
    "min, max or p05, p95": DEFINITION,
    "warmup_s": (
        f"seconds of one prefill and {WARMUP_STEPS} steps per cell and mode before the first"
        " repeat; in no other figure"
    ),
    "bytes_per_step, flops_per_step": (
        "what a decode step in the middle of the output cannot avoid: weights once, earlier keys "
        "and values (cached), as they are stored; 2 FLOPs per multiply-add, causal attention"
    ),
    "peak_bytes": (
        "most memory of the GPU that was allocated in any repeat, the model included; null on a"
        " CPU, where only the whole process could be told"
    ),
    "cache_bytes": "what the cache of the batch holds room for",
    "weight_bytes": "all weights as they are stored",
    "mbu, mfu": (
        "bytes_per_step and flops_per_step per median step_s, as shares of peaks measured on this"
        " device just before, and (_stated) of those of bfloat16 that the maker states; mbu passes"
        " 1 where the weights stay in a processor cache; prefill_mbu, prefill_mfu: of the prefill"
    ),
    "bound, prefill_bound": (
        "bandwidth or compute, whichever measured share is larger; overhead when both are under a"
        " third"
    ),
    "speedup": "median decode_tok_s over that of the uncached mode of the same cell and weights",
    "same_tokens_frac": (
        "share of tokens equal to those of the uncached mode, in the dtype of the measurement,"
        " where near-ties may differ, and an 8-bit cache rounds"
    ),
    "decode_tok_s (headline)": (
        "the median of the cell with a static cache, the model's own weights, batch 1 and the"
        " longest prompt; so is prefill_tok_s"
    ),
    "fp64_max_abs_diff": (
        "largest |cached - full forward| over logits in float64, of all checks; above the tolerance"
        " no speed is reported. Checked are all cells (every row and step), the greatest length in"
        " passes of one and of several queries, rows of all lengths in one batch, and that a token"
        " without a place is refused"
    ),
}


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    batch: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class Timing:
    """One repeat: the prefill, each decode step, and the tokens that came out."""

    prefill_s: float
    step_s: list[float]
    tokens_BT: Tensor
    peak_bytes: int | None
    cache_bytes: int


def summary(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Median and spread; `repeats` counts the values."""
    found = {"median": float(np.median(values))} | spread(values)
    return {name: significant(value) for name, value in found.items()} | {"repeats": len(values)}


def significant(value: float) -> float:
    """Six significant digits: more than a clock can tell."""
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class Subject:
    """A model in one number format, and what its passes are held against."""

    model: Transformer
    weights: str
    """Name of the format."""
    peaks: Peaks
    stated: Peaks | None = None
    caches: Mapping[str, MakeCache] = field(default_factory=dict)


def measure_cell(subject: Subject, cell: Cell, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Rows of one cell: of each cache, and of the uncached mode."""
    model = subject.model
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(
        0, model.config.vocab_size, (cell.batch, cell.prompt_tokens), generator=generator
    ).tolist()
    run = {name: partial(run_cached, make_cache=make) for name, make in subject.caches.items()}
    run |= {UNCACHED: run_uncached}
    warmup_s = {}
    for name in run:
        started = time.perf_counter()
        run[name](model, prompts, min(cell.new_tokens, 1 + WARMUP_STEPS))
        warmup_s[name] = time.perf_counter() - started
    timings: dict[str, list[Timing]] = {name: [] for name in run}
    for repeat in range(repeats):
        for name in list(run) if repeat % 2 == 0 else reversed(list(run)):
            timings[name].append(run[name](model, prompts, cell.new_tokens))
    rows = [_row(subject, cell, name, timings[name], warmup_s[name]) for name in run]
    without = rows[-1]["decode_tok_s"]["median"]
    expected_BT = timings[UNCACHED][0].tokens_BT
    for row, name in zip(rows, run, strict=True):
        row["speedup"] = significant(row["decode_tok_s"]["median"] / without)
        # In float32 a near-tie may fall to either side, so equal tokens are reported and float64
        # decides.
        same_BT = timings[name][0].tokens_BT == expected_BT
        row["same_tokens_frac"] = round(float(same_BT.float().mean()), 4)
    return rows


@torch.inference_mode()
def run_cached(
    model: Transformer, prompts: list[list[int]], new_tokens: int, make_cache: MakeCache
) -> Timing:
    cache = make_cache(model, list(map(len, prompts)), new_tokens)

    def passes() -> Iterator[Tensor]:
        ids_B = prefill(model, prompts, cache).argmax(-1)
        yield ids_B
        for _ in range(new_tokens - 1):
            ids_B = decode(model, ids_B, cache).argmax(-1)
            yield ids_B

    return _timed(passes(), place_of(model)[1], cache.num_bytes)


@torch.inference_mode()
def run_uncached(model: Transformer, prompts: list[list[int]], new_tokens: int) -> Timing:
    def passes() -> Iterator[Tensor]:
        ids_BT = torch.tensor(prompts, device=place_of(model)[1])
        for _ in range(new_tokens):
            ids_B = model.logits(model.hidden(ids_BT)[:, -1]).argmax(-1)
            yield ids_B
            ids_BT = torch.cat((ids_BT, ids_B[:, None]), dim=1)

    return _timed(passes(), place_of(model)[1], 0)


def _timed(passes: Iterator[Tensor], device: torch.device, cache_bytes: int) -> Timing:
    times, tokens = [], []
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    synchronize(device)
    started = time.perf_counter()
    for ids_B in passes:
        synchronize(device)
        now = time.perf_counter()
        times.append(now - started)
        tokens.append(ids_B)
        started = time.perf_counter()
    peak_bytes = torch.cuda.max_memory_allocated(device) if on_gpu else None
    return Timing(times[0], times[1:], torch.stack(tokens, dim=1), peak_bytes, cache_bytes)


def _row(
    subject: Subject, cell: Cell, name: str, timings: list[Timing], warmup_s: float
) -> dict[str, Any]:
    steps = np.array([t.step_s for t in timings])
    prefill_s = np.array([t.prefill_s for t in timings])
    speeds = cell.batch * steps.shape[1] / steps.sum(1)
    peaks_seen = [t.peak_bytes for t in timings if t.peak_bytes is not None]
    step, reading = _works(subject, cell, name)
    row = {
        "mode": UNCACHED if name == UNCACHED else CACHED,
        "cache": None if name == UNCACHED else name,
        "weights": subject.weights,
        "batch": cell.batch,
        "prompt_tokens": cell.prompt_tokens,
        "new_tokens": cell.new_tokens,
        "prefill_s": summary(prefill_s),
        "prefill_tok_s": summary(cell.batch * cell.prompt_tokens / prefill_s),
        "step_s": summary(steps.ravel()),
        "decode_tok_s": summary(speeds),
        "samples": {
            "decode_tok_s": [significant(value) for value in speeds],
            "prefill_s": [significant(value) for value in prefill_s],
        },
        "bytes_per_step": step.num_bytes,
        "flops_per_step": step.flops,
        "cache_bytes": timings[0].cache_bytes,
        "weight_bytes": num_bytes(subject.model),
        "peak_bytes": max(peaks_seen, default=None),
        "warmup_s": significant(warmup_s),
    }
    for prefix, work, elapsed_s in (
        ("", step, float(np.median(steps))),
        ("prefill_", reading, float(np.median(prefill_s))),
    ):
        found: dict[str, float | str | None] = {**limits(work, elapsed_s, subject.peaks)}
        stated = limits(work, elapsed_s, subject.stated) if subject.stated else {}
        found |= {f"{share}_stated": stated.get(share) for share in ("mbu", "mfu")}
        row |= {f"{prefix}{key}": value for key, value in found.items()}
    return row


def _works(subject: Subject, cell: Cell, name: str) -> tuple[Work, Work]:
    """What a decode step and the prefill cannot avoid, of weights and cache as they are stored."""
    model, middle = subject.model, cell.prompt_tokens + cell.new_tokens // 2
    config, size = model.config, place_of(model)[0].itemsize
    step = (full_pass if name == UNCACHED else cached_step)(config, cell.batch, middle, size)
    reading = full_pass(config, cell.batch, cell.prompt_tokens, size)
    saved = config.num_parameters() * size - num_bytes(model)
    if not config.tied_embeddings:  # of which few rows are read
        saved -= config.vocab_size * config.dim * size - num_bytes(model.embedding)
    saved_of_cache = 0
    if name == INT8:
        saved_of_cache = kv_bytes_per_token(config, size) - int8_bytes_per_token(config)
    rows = cell.batch * middle
    return (
        Work(step.num_bytes - saved - rows * saved_of_cache, step.flops),
        Work(reading.num_bytes - saved, reading.flops),
    )

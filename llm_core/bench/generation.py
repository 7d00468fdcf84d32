"""Measures generation speed and what the cache gains: prefill and decode apart, cached against
recomputed.

Every cell of the grid (batch, prompt tokens, new tokens) runs in both modes on the same random
prompts, given as ids and of exact length; the output length is fixed, end-of-text is ignored. Modes
alternate, forwards and backwards (ABBA), so that a drift of the machine meets both. Without a
cache, each new token costs a pass over everything so far. Logits are those of the last position
only, in both modes. Sampling is argmax on the device.

The clock is read with the device idle, before and after each pass. Warm-up passes are excluded and
reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_core.bench.spread import DEFINITION, spread
from llm_core.device import synchronize
from llm_core.infer.cache.rows import decode, place_of, prefill, static_cache
from llm_core.model.transformer import Transformer
from llm_core.planner.roofline import Peaks, cached_step, full_pass, kv_bytes_per_token, limits

CACHED, UNCACHED = "cached", "uncached"
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
        "a decode step computes one position per row and reads earlier keys and values from a"
        " static cache"
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
        "and values (cached); 2 FLOPs per multiply-add, causal attention"
    ),
    "mbu, mfu": (
        "bytes_per_step and flops_per_step per median step_s, as shares of peaks measured on this"
        " device just before; mbu passes 1 where the weights stay in a processor cache"
    ),
    "bound": (
        "bandwidth or compute, whichever share is larger; overhead when both are under a third"
    ),
    "speedup": "cached over uncached median decode_tok_s of one cell",
    "same_tokens_frac": (
        "share of equal tokens from both modes, in the dtype of the measurement, where near-ties"
        " may differ"
    ),
    "decode_tok_s (headline)": (
        "the median of the cached cell with batch 1 and the longest prompt; so is prefill_tok_s"
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


def summary(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Median and spread; `repeats` counts the values."""
    found = {"median": float(np.median(values))} | spread(values)
    return {name: significant(value) for name, value in found.items()} | {"repeats": len(values)}


def significant(value: float) -> float:
    """Six significant digits: more than a clock can tell."""
    return float(f"{value:.6g}")


def measure_cell(
    model: Transformer, cell: Cell, repeats: int, seed: int, peaks: Peaks
) -> list[dict[str, Any]]:
    """Rows of the cached and of the uncached mode of one cell."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(
        0, model.config.vocab_size, (cell.batch, cell.prompt_tokens), generator=generator
    ).tolist()
    run = {CACHED: run_cached, UNCACHED: run_uncached}
    warmup_s = {}
    for mode in run:
        started = time.perf_counter()
        run[mode](model, prompts, min(cell.new_tokens, 1 + WARMUP_STEPS))
        warmup_s[mode] = time.perf_counter() - started
    timings: dict[str, list[Timing]] = {CACHED: [], UNCACHED: []}
    for repeat in range(repeats):
        for mode in list(run) if repeat % 2 == 0 else reversed(list(run)):
            timings[mode].append(run[mode](model, prompts, cell.new_tokens))
    rows = [_row(model, cell, mode, timings[mode], warmup_s[mode], peaks) for mode in run]
    gain = rows[0]["decode_tok_s"]["median"] / rows[1]["decode_tok_s"]["median"]
    # In float32 a near-tie may fall to either side, so equal tokens are reported and float64
    # decides.
    same = float((timings[CACHED][0].tokens_BT == timings[UNCACHED][0].tokens_BT).float().mean())
    return [
        row | {"speedup": significant(gain), "same_tokens_frac": round(same, 4)} for row in rows
    ]


@torch.inference_mode()
def run_cached(model: Transformer, prompts: list[list[int]], new_tokens: int) -> Timing:
    cache = static_cache(model, list(map(len, prompts)), new_tokens)

    def passes() -> Iterator[Tensor]:
        ids_B = prefill(model, prompts, cache).argmax(-1)
        yield ids_B
        for _ in range(new_tokens - 1):
            ids_B = decode(model, ids_B, cache).argmax(-1)
            yield ids_B

    return _timed(passes(), place_of(model)[1])


@torch.inference_mode()
def run_uncached(model: Transformer, prompts: list[list[int]], new_tokens: int) -> Timing:
    def passes() -> Iterator[Tensor]:
        ids_BT = torch.tensor(prompts, device=place_of(model)[1])
        for _ in range(new_tokens):
            ids_B = model.logits(model.hidden(ids_BT)[:, -1]).argmax(-1)
            yield ids_B
            ids_BT = torch.cat((ids_BT, ids_B[:, None]), dim=1)

    return _timed(passes(), place_of(model)[1])


def _timed(passes: Iterator[Tensor], device: torch.device) -> Timing:
    times, tokens = [], []
    synchronize(device)
    started = time.perf_counter()
    for ids_B in passes:
        synchronize(device)
        now = time.perf_counter()
        times.append(now - started)
        tokens.append(ids_B)
        started = time.perf_counter()
    return Timing(times[0], times[1:], torch.stack(tokens, dim=1))


def _row(
    model: Transformer, cell: Cell, mode: str, timings: list[Timing], warmup_s: float, peaks: Peaks
) -> dict[str, Any]:
    steps = np.array([t.step_s for t in timings])
    prefill_s = np.array([t.prefill_s for t in timings])
    size = place_of(model)[0].itemsize
    middle = cell.prompt_tokens + cell.new_tokens // 2
    work = (cached_step if mode == CACHED else full_pass)(model.config, cell.batch, middle, size)
    cache_tokens = cell.batch * (cell.prompt_tokens + cell.new_tokens) if mode == CACHED else 0
    return {
        "mode": mode,
        "batch": cell.batch,
        "prompt_tokens": cell.prompt_tokens,
        "new_tokens": cell.new_tokens,
        "prefill_s": summary(prefill_s),
        "prefill_tok_s": summary(cell.batch * cell.prompt_tokens / prefill_s),
        "step_s": summary(steps.ravel()),
        "decode_tok_s": summary(cell.batch * steps.shape[1] / steps.sum(1)),
        "bytes_per_step": work.num_bytes,
        "flops_per_step": work.flops,
        "cache_bytes": cache_tokens * kv_bytes_per_token(model.config, size),
        "warmup_s": significant(warmup_s),
    } | limits(work, float(np.median(steps)), peaks)

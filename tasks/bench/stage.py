"""Measures how fast a model answers on this device, after proving that its answers are right.

First the proof. In float64, generation with each cache gives the logits of a full forward pass, at
every cell of the grid and beyond (`llm_core.infer.equivalence`), and whole answers of the engine
are those of full passes, alone or among others, cut, interrupted or stopped
(`llm_core.bench.answers`). When any of it fails no speed is measured, and the artifact names the
check. In the dtypes that are timed, greedy answers must be those of full passes but for near-ties;
weights that fail are left out.

Then the grid of `llm_core.bench.generation` (batch, context, cache, weights, cached or recomputed),
and loads on the engine and over HTTP: a fixed number of open requests, and Poisson arrivals
(`tasks.bench.loads`).

In: the model folder of train. Out: `bench.json`. A measured stage: its key holds the device
fingerprint, and its bytes differ from run to run. Cost: half a minute for a small model on a CPU.
Leaves out: quality, energy. Speed on random prompts says nothing about text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_core.config import ConfigError
from llm_core.fingerprint import device_fingerprint
from tasks.bench.config import BenchConfig
from tasks.evaluation.models import open_models
from tasks.runtime.artifact import Artifact, write_json
from tasks.runtime.parts import RunParts, serial
from tasks.runtime.stage import StageFailure

if TYPE_CHECKING:
    import torch

    from llm_core.bench.generation import Cell
    from llm_core.infer.cache.rows import MakeCache
    from llm_core.infer.ranks.team import Models
    from llm_core.model.config import ModelConfig


def benchmark_model(
    train: Artifact, out_dir: Path, config: BenchConfig, run_parts: RunParts = serial
) -> Artifact:
    """Prove answers right in float64, then measure the grid and the loads.

    Raises StageFailure when no cell of the grid fits the model's max_seq_len.
    """
    result = measure(train.path / "model", config)
    write_json(out_dir / "bench.json", result)
    counters = {"cells": len(result["cells"]), "loads": len(result["loads"])}
    return Artifact(out_dir, "bench", counters, result)


def caches_of(config: BenchConfig) -> dict[str, MakeCache]:
    """How each cache is made, by its name in the settings."""
    from functools import partial

    from llm_core.infer.cache.rows import paged_cache, static_cache

    known: dict[str, MakeCache] = {
        "static": static_cache,
        "paged": paged_cache,
        "int8": partial(static_cache, int8=True),
    }
    return {name: known[name] for name in config.caches}


def measure(
    model_folder: Path, config: BenchConfig, caches: dict[str, MakeCache] | None = None
) -> dict[str, Any]:
    """The whole content of `bench.json`. caches: other ones than the settings name."""
    from llm_core.device import decode_threads
    from llm_core.huggingface.export import read_config

    with open_models(config.tensor_parallel, config.device) as models:
        shape = read_config(model_folder)
        with decode_threads(shape.num_parameters()):
            return _measure(model_folder, shape, config, caches or caches_of(config), models)


def _measure(
    model_folder: Path,
    shape: ModelConfig,
    config: BenchConfig,
    caches: dict[str, MakeCache],
    models: Models,
) -> dict[str, Any]:
    import torch

    from llm_core.bench import latency
    from llm_core.bench.generation import DEFINITIONS
    from tasks.bench.proof import prove

    device = models.device
    automatic = "bfloat16" if device.type == "cuda" else "float32"
    dtype = getattr(torch, automatic if config.dtype == "auto" else config.dtype)
    cells, skipped = choose_cells(config, shape.max_seq_len)
    correctness, failure = prove(model_folder, models, shape, cells, config, caches)
    result: dict[str, Any] = {
        "correctness": correctness,
        "withheld": failure,
        "environment": {
            "device": device_fingerprint(),
            "dtype": str(dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "definitions": DEFINITIONS,
        "load_definitions": latency.DEFINITIONS,
    }
    if failure is not None:
        nothing = dict.fromkeys(("decode_tok_s", "prefill_tok_s", "headline"))
        return result | nothing | {"cells": [], "loads": [], "skipped": []}
    return result | _measured(model_folder, cells, skipped, config, caches, models, dtype)


def _measured(
    model_folder: Path,
    cells: Sequence[Cell],
    skipped: list[dict[str, Any]],
    config: BenchConfig,
    caches: dict[str, MakeCache],
    models: Models,
    dtype: torch.dtype,
) -> dict[str, Any]:
    from llm_core.bench.answers import greedy_behind
    from llm_core.bench.generation import Subject, measure_cell, significant
    from llm_core.profiling.roofline import measure_peaks, stated_peaks
    from tasks.bench.loads import measure_loads

    peaks, stated = measure_peaks(models.device, dtype), stated_peaks(models.device)
    rows: list[dict[str, Any]] = []
    behind: dict[str, float] = {}
    loads: list[dict[str, Any]] = []
    for weights in sorted(config.weights, key="model".__ne__):
        try:
            model = models.load(model_folder, dtype, None if weights == "model" else weights)
        except ConfigError as error:
            if weights == "model":
                raise
            skipped = [*skipped, {"weights": weights, "reason": str(error)}]
            continue
        found = greedy_behind(model, config.seed)
        behind[weights] = found.worst
        if not found.is_right:
            reason = (
                f"withheld: a greedy token lies {found.worst:.3g} standard deviations behind"
                f" the best of a full pass, {found.allowed:.3g} is allowed"
            )
            skipped = [*skipped, {"weights": weights, "reason": reason}]
            continue
        subject = Subject(model, weights, peaks, stated, caches)
        for cell in cells:
            rows += measure_cell(subject, cell, config.repeats, config.seed)
        if weights == "model":
            loads, left_out = measure_loads(model, model_folder, config)
            skipped = [*skipped, *left_out]
    first = _headline(rows)
    return {
        "cells": rows,
        "loads": loads,
        "skipped": skipped,
        "behind": {name: significant(value) for name, value in behind.items()},
        "peaks": {name: significant(value) for name, value in asdict(peaks).items()},
        "stated_peaks": asdict(stated) if stated else None,
        "decode_tok_s": first["decode_tok_s"]["median"] if first else None,
        "prefill_tok_s": first["prefill_tok_s"]["median"] if first else None,
        "headline": first
        and {
            name: first[name]
            for name in ("mode", "cache", "weights", "batch", "prompt_tokens", "new_tokens")
        },
    }


def _headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of a static cache, batch 1 and the longest prompt; None where it was withheld."""
    single = [
        row
        for row in rows
        if (row["cache"], row["weights"], row["batch"]) == ("static", "model", 1)
    ]
    return max(single, key=lambda row: row["prompt_tokens"], default=None)


def choose_cells(config: BenchConfig, max_seq_len: int) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Cells that fit the model, and those that do not with the reason."""
    from llm_core.bench.generation import Cell

    cells = [
        Cell(*sizes) for sizes in product(config.batches, config.prompt_tokens, config.new_tokens)
    ]
    fitting = [cell for cell in cells if cell.prompt_tokens + cell.new_tokens <= max_seq_len]
    if not fitting:
        shortest = min(cell.prompt_tokens + cell.new_tokens for cell in cells)
        raise StageFailure(
            f"bench has no cell of at most max_seq_len ({max_seq_len}) tokens, the shortest has"
            f" {shortest}; set smaller bench.prompt_tokens"
        )
    reason = f"prompt and new tokens are more than max_seq_len ({max_seq_len})"
    return fitting, [asdict(cell) | {"reason": reason} for cell in cells if cell not in fitting]

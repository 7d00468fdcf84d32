"""Measures the speed of the key-value cache engine on this device, after proving that its results
are right.

First the proof (`llm_core.infer.equivalence`): in float64, generation with the cache gives the
logits of a full forward pass, on the trained weights, at every cell of the grid and beyond. When it
fails no speed is measured, and the artifact says which check failed. Then the grid of
`llm_core.bench.generation`: prefill and decode apart, cached against recomputed, medians with their
spread.

In: the model folder of train. Out: `bench.json`. A measured stage: its key holds the device
fingerprint, and its bytes differ from run to run. Cost: seconds for a small model on a CPU;
uncached cells take most. Leaves out: serving under load, quality, energy. Speed on random prompts
says nothing about text.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_core.fingerprint import device_fingerprint
from tasks.evaluation.config import BenchConfig
from tasks.evaluation.models import open_models
from tasks.runtime.artifact import Artifact, write_json
from tasks.runtime.parts import RunParts, serial
from tasks.runtime.stage import StageFailure

if TYPE_CHECKING:
    import torch

    from llm_core.bench.generation import Cell
    from llm_core.infer.cache.rows import MakeCache
    from llm_core.infer.equivalence import Check
    from llm_core.infer.ranks.team import Models
    from llm_core.model.config import ModelConfig
    from llm_core.model.transformer import Transformer


def benchmark_model(
    train: Artifact, out_dir: Path, config: BenchConfig, run_parts: RunParts = serial
) -> Artifact:
    """Prove the cache right in float64, then measure prefill and decode over the grid.

    Raises StageFailure when no cell of the grid fits the model's max_seq_len.
    """
    from llm_core.infer.cache.rows import static_cache

    result = measure(train.path / "model", config, static_cache)
    write_json(out_dir / "bench.json", result)
    return Artifact(out_dir, "bench", {"cells": len(result["cells"])}, result)


def measure(model_folder: Path, config: BenchConfig, make_cache: MakeCache) -> dict[str, Any]:
    """The whole content of `bench.json`. `make_cache` is what the proof is about."""
    with open_models(config.tensor_parallel, config.device) as models:
        return _measure(model_folder, config, make_cache, models)


def _measure(
    model_folder: Path, config: BenchConfig, make_cache: MakeCache, models: Models
) -> dict[str, Any]:
    import torch

    from llm_core.bench.generation import DEFINITIONS
    from llm_core.huggingface.export import read_config
    from llm_core.infer.cache.rows import paged_cache
    from llm_core.infer.equivalence import TOLERANCE

    device = models.device
    automatic = "bfloat16" if device.type == "cuda" else "float32"
    dtype = getattr(torch, automatic if config.dtype == "auto" else config.dtype)
    shape = read_config(model_folder)
    cells, skipped = choose_cells(config, shape.max_seq_len)
    checks = []
    # Of the engine's cache as well as of the one that is timed.
    for prefix, make in (("", make_cache), ("paged_", paged_cache)):
        each_kind = check(model_folder, models, shape, cells, config, make)
        checks += [replace(each, name=f"{prefix}{each.name}") for each in each_kind]
    failed = [check for check in checks if not check.passed]
    # NaN is worse than any number, but compares as neither more nor less.
    worst = max((c.max_abs_diff for c in checks), key=lambda v: math.inf if math.isnan(v) else v)
    result: dict[str, Any] = {
        "correctness": {
            "fp64_max_abs_diff": _finite(worst),
            "tolerance": TOLERANCE,
            "passed": not failed,
            "checks": [
                {"name": c.name, "max_abs_diff": _finite(c.max_abs_diff), "passed": c.passed}
                for c in checks
            ],
        },
        "withheld": None,
        "environment": {
            "device": device_fingerprint(),
            "dtype": str(dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "definitions": DEFINITIONS,
    }
    if failed:
        found = ", ".join(f"{check.name}: {check.finding}" for check in failed)
        result["withheld"] = (
            f"cached and full forward differ in float64 ({found}), {TOLERANCE:.0e} is allowed: no"
            " speed is reported"
        )
        nothing = dict.fromkeys(("decode_tok_s", "prefill_tok_s", "headline"))
        return result | nothing | {"cells": [], "skipped": []}
    model = models.load(model_folder, dtype)
    return result | {"skipped": skipped} | measure_grid(model, cells, config, device, dtype)


def check(
    model_folder: Path,
    models: Models,
    shape: ModelConfig,
    cells: Sequence[Cell],
    config: BenchConfig,
    make_cache: MakeCache,
) -> list[Check]:
    """The proof of a cache: on the whole model in float64, or on all of its layers one by one where
    that does not fit memory."""
    import torch

    from llm_core.infer.equivalence import Shape, check_cache
    from llm_core.infer.equivalence_layers import check_layers

    device, ranks = models.device, config.tensor_parallel
    room = free_bytes(device) * (ranks if device.type == "cuda" else 1)
    if fits_in_double(shape, room):
        precise = models.load(model_folder, torch.float64)
        shapes = [Shape(cell.batch, cell.prompt_tokens, cell.new_tokens) for cell in cells]
        return check_cache(precise, shapes, config.check_tokens, config.seed, make_cache)
    if ranks > 1:
        raise StageFailure(
            f"the model in float64 does not fit the memory of {ranks} ranks, and its cache cannot"
            " be proved right; raise bench.tensor_parallel"
        )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    longest = max(cell.prompt_tokens + cell.new_tokens for cell in cells)
    return check_layers(models.load(model_folder, dtype), longest, config.seed, make_cache)


def fits_in_double(shape: ModelConfig, free: int) -> bool:
    """Whether a model in float64 leaves as much again for what it computes."""
    return 2 * 8 * shape.num_parameters() <= free


def free_bytes(device: torch.device) -> int:
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _finite(value: float) -> float | None:
    """The value where JSON has it."""
    return value if math.isfinite(value) else None


def measure_grid(
    model: Transformer,
    cells: Sequence[Cell],
    config: BenchConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Any]:
    from llm_core.bench.generation import measure_cell, significant
    from llm_core.planner.roofline import measure_peaks

    peaks = measure_peaks(device, dtype)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        rows += measure_cell(model, cell, config.repeats, config.seed, peaks)
    single = [row for row in rows if row["mode"] == "cached" and row["batch"] == 1]
    first = max(single, key=lambda row: row["prompt_tokens"])
    return {
        "cells": rows,
        "peaks": {
            "bytes_per_s": significant(peaks.bytes_per_s),
            "flops_per_s": significant(peaks.flops_per_s),
        },
        "decode_tok_s": first["decode_tok_s"]["median"],
        "prefill_tok_s": first["prefill_tok_s"]["median"],
        "headline": {
            name: first[name] for name in ("mode", "batch", "prompt_tokens", "new_tokens")
        },
    }


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

"""Proves caches and the engine right on the model that is to be timed, in float64.

A model that does not fit memory in float64 is checked layer by layer, and its answers only in the
dtype that is timed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.bench.config import BenchConfig
from tasks.runtime.stage import StageFailure

if TYPE_CHECKING:
    import torch

    from llm_core.bench.generation import Cell
    from llm_core.infer.cache.rows import MakeCache
    from llm_core.infer.equivalence import Check
    from llm_core.infer.ranks.team import Models
    from llm_core.model.config import ModelConfig

LEAST_TOKENS, MOST_PARAMETERS = 32, 300_000_000
"""Whole answers are checked of models that read so many tokens, and that a CPU is fast enough for:
not all kernels of GPUs know float64."""


def prove(
    folder: Path,
    models: Models,
    shape: ModelConfig,
    cells: Sequence[Cell],
    config: BenchConfig,
    caches: Mapping[str, MakeCache],
) -> tuple[dict[str, Any], str | None]:
    """(what was checked, why no speed may be shown or None)."""
    import torch

    from llm_core.bench.answers import Proof, check_answers
    from llm_core.huggingface.export import load_model
    from llm_core.infer.cache.rows import paged_cache
    from llm_core.infer.equivalence import TOLERANCE

    # The engine's own as well as those that are timed.
    checks: list[Check] = []
    proofs: list[Proof] = []
    for name, make in {"paged": paged_cache, **caches}.items():
        prefix = "" if name == "static" else f"{name}_"
        found = check_kind(folder, models, shape, cells, config, make, name == "int8")
        checks += [replace(each, name=f"{prefix}{each.name}") for each in found]
    is_small = shape.num_parameters() <= MOST_PARAMETERS
    if is_small and shape.max_seq_len >= LEAST_TOKENS:
        # One process checks them on a CPU; ranks have the model where they are.
        alone = config.tensor_parallel == 1
        precise = (load_model if alone else models.load)(folder, torch.float64)
        proofs = check_answers(precise, config.seed)
    failed = [f"{check.name}: {check.finding}" for check in checks if not check.passed]
    wrong = [f"{proof.name}: {proof.finding}" for proof in proofs if not proof.passed]
    # NaN is worse than any number, but compares as neither more nor less.
    worst = max((c.max_abs_diff for c in checks), key=lambda v: math.inf if math.isnan(v) else v)
    correctness = {
        "fp64_max_abs_diff": _finite(worst),
        "tolerance": TOLERANCE,
        "passed": not failed and not wrong,
        "checks": [
            {"name": c.name, "max_abs_diff": _finite(c.max_abs_diff), "passed": c.passed}
            for c in checks
        ],
        "answers": [{"name": p.name, "finding": p.finding, "passed": p.passed} for p in proofs],
    }
    if failed:
        return correctness, (
            f"cached and full forward differ in float64 ({', '.join(failed)}), {TOLERANCE:.0e} is"
            " allowed: no speed is reported"
        )
    if wrong:
        return correctness, (
            f"answers of the engine are wrong in float64 ({', '.join(wrong)}): no speed is reported"
        )
    return correctness, None


def check_kind(
    folder: Path,
    models: Models,
    shape: ModelConfig,
    cells: Sequence[Cell],
    config: BenchConfig,
    make_cache: MakeCache,
    int8: bool,
) -> list[Check]:
    """The proof of a cache: on the whole model in float64, or on all of its layers one by one where
    that does not fit memory."""
    import torch

    from llm_core.infer.equivalence import Shape, check_cache
    from llm_core.infer.equivalence_layers import check_layers

    device, ranks = models.device, config.tensor_parallel
    room = free_bytes(device) * (ranks if device.type == "cuda" else 1)
    if fits_in_double(shape, room):
        precise = models.load(folder, torch.float64)
        shapes = [Shape(cell.batch, cell.prompt_tokens, cell.new_tokens) for cell in cells]
        return check_cache(precise, shapes, config.check_tokens, config.seed, make_cache, int8)
    if ranks > 1:
        raise StageFailure(
            f"the model in float64 does not fit the memory of {ranks} ranks, and its cache cannot"
            " be proved right; raise bench.tensor_parallel"
        )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    longest = max(cell.prompt_tokens + cell.new_tokens for cell in cells)
    return check_layers(models.load(folder, dtype), longest, config.seed, make_cache, int8)


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

"""Holds the losses of a benchmark against those of plain training on the same tokens, and withholds
speeds that fail.

Plain: one process, torch's operations, nothing compiled, in the run's dtype. Weights start the same
to the bit, so the gradient norm of the first step tells a wrong gradient before losses do. Losses
are taken at a rate at which training is stable (`train.RUN`): what only changes the order of sums
moves none by more than a thousandth there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llm_core.memory.config import MemoryConfig
from llm_core.parallel.config import ParallelConfig
from llm_core.training.run_config import RunConfig

Row = dict[str, Any]

NOISE = {"fp32": (1e-3, 1e-3), "bf16": (5e-3, 5e-3), "fp16": (5e-3, 5e-3), "float8": (1e-2, 5e-2)}
"""Largest difference of a loss in nats, and of the first gradient norm as a share of it. In
bfloat16 half the micro batch, tensor ranks and kernels of our own moved losses by 0.0001 to 0.0008
and the norm by 0.0004, 8-bit products by 0.0018 and 0.012 (H200, 1.1 billion weights)."""


def plain(config: RunConfig) -> RunConfig:
    """The same training in one process, by the least of everything: it takes little memory, and is
    not timed."""
    train = replace(
        config.train,
        kernels="torch",
        attention="auto",
        compile=False,
        float8=False,
        micro_batch_sequences=1,
        profile_steps=(),
    )
    parallel = ParallelConfig(
        device=config.parallel.device, num_threads=config.parallel.num_threads
    )
    return replace(
        config, train=train, parallel=parallel, memory=MemoryConfig("full", loss_chunk_tokens=1024)
    )


def held_against(row: Row, reference: Row, config: RunConfig, speeds: Sequence[str]) -> Row:
    """The row with its differences from the reference in place of its curve; without its speeds
    where they are beyond noise.

    Both have `losses` and `norms` of each step.
    """
    loss = largest_difference(row["losses"], reference["losses"])
    first, expected = row["norms"][0], reference["norms"][0]
    norm = abs(first - expected) / expected
    most = NOISE["float8" if config.train.float8 else config.train.dtype]
    agrees = loss <= most[0] and norm <= most[1]  # false for what is not a number
    found = {name: value for name, value in row.items() if name not in ("losses", "norms")}
    if not agrees:
        found |= dict.fromkeys(speeds)
    found |= {"loss": row["losses"][-1], "plain_loss": reference["losses"][-1]}
    return found | {
        "loss_difference": round(loss, 6),
        "norm_difference": round(norm, 6),
        "losses_agree": agrees,
    }


def largest_difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Infinite where a loss is not a number."""
    apart = (abs(one - other) for one, other in zip(losses, expected, strict=True))
    return max(difference if difference == difference else float("inf") for difference in apart)

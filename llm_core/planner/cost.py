"""Says what a training costs: operations, days, device hours, money, energy. Standard library
only."""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.planner.hardware import HardwareConfig

COOLING = 1.25
"""Power of a data centre over that of its devices."""
DAY_S = 86400.0


@dataclass(frozen=True)
class Cost:
    """Of one training."""

    flops: float
    days: float
    device_hours: float
    money: float | None
    """In US dollars; None where no price is known."""
    energy_kwh: float | None


def recomputed_flops_per_token(model: ModelConfig, memory: MemoryConfig, seq_len: int) -> float:
    """Operations of forward that backward does again, per token; attention by its causal half.

    With all blocks recomputed a training does 8 N D instead of 6 N D (Narayanan et al., 2021,
    appendix), the head apart, which is not.
    """
    products = 2 * (model.matmul_parameters() - model.vocab_size * model.dim)
    attention = 2 * model.num_layers * model.attention_dim * seq_len
    if memory.recompute == "full":
        return products + attention
    if memory.recompute == "every":
        return (products + attention) / memory.every_k
    if memory.recompute == "selective":
        # The product out of attention; that of `down` is not needed again.
        return 2 * model.num_layers * model.dim * model.attention_dim
    return 0.0


def training_cost(
    flops: float, num_devices: int, flops_per_s: float, hardware: HardwareConfig | None = None
) -> Cost:
    """flops_per_s: what one device reaches, on average over the training."""
    elapsed_s = flops / (num_devices * flops_per_s)
    hours = num_devices * elapsed_s / 3600
    price = hardware.price_per_hour if hardware else 0.0
    watts = hardware.watts if hardware else 0.0
    return Cost(
        flops,
        elapsed_s / DAY_S,
        hours,
        hours * price if price else None,
        hours * watts * COOLING / 1000 if watts else None,
    )

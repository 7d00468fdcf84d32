"""Says what a training does and costs: operations by convention, share of the peak, days, money.

| name | operations per token |
|---|---|
| six_n | 6 N, with N all weights (Kaplan et al., 2020) |
| eight_n | 8 N, forward done again (Narayanan et al., 2021) |
| model_causal | products of weights and the half of attention that is needed (Megatron) |
| model_full | attention as if it were not causal (PaLM: Chowdhery et al., 2022, appendix B) |
| hardware_causal, hardware_full | these and what backward computes again |

MFU is model operations over the stated peak, HFU hardware operations. Windows narrow attention
(`sparse.pairs.attended_tokens`). Standard library and NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llm_core.memory.config import MemoryConfig
from llm_core.model.config import ModelConfig
from llm_core.model.sparse.pairs import attended_tokens
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import TimePlan, Work, plan_memory, plan_time

COOLING = 1.25
"""Power of a data centre over that of its devices."""
DAY_S = 86400.0


@dataclass(frozen=True)
class TokenFlops:
    """Operations per token of a training, 2 per multiply-add, by convention."""

    six_n: float
    eight_n: float
    model_causal: float
    model_full: float
    hardware_causal: float
    hardware_full: float


@dataclass(frozen=True)
class Cost:
    """Of one training."""

    flops: float
    days: float
    device_hours: float
    money: float | None
    """In US dollars; None where no price is known."""
    energy_kwh: float | None


@dataclass(frozen=True)
class Speed:
    """MFU and HFU are shares of the stated peak of all devices."""

    tokens_per_s: float
    mfu_causal: float
    mfu_full: float
    hfu_causal: float
    hfu_full: float
    cost: Cost


def flops_per_token(model: ModelConfig, memory: MemoryConfig, seq_len: int) -> TokenFlops:
    """Of rows of so many tokens, each one document."""
    weights, attended = model.num_parameters(active=True), attended_tokens(model.patterns, seq_len)
    causal, full = (model.training_flops_per_token(attended, half) for half in (True, False))
    again = [recomputed_flops_per_token(model, memory, seq_len, half) for half in (True, False)]
    return TokenFlops(6 * weights, 8 * weights, causal, full, causal + again[0], full + again[1])


def recomputed_flops_per_token(
    model: ModelConfig, memory: MemoryConfig, seq_len: int, causal: bool = True
) -> float:
    """Operations of forward that backward does again, per token; never those of the head."""
    products = 2 * (model.matmul_parameters() - model.vocab_size * model.dim)
    pairs = model.num_layers * model.attention_dim * attended_tokens(model.patterns, seq_len)
    attention = (2 if causal else 4) * pairs
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


def training_speed(work: Work, time: TimePlan, hardware: HardwareConfig) -> Speed:
    """At the predicted time of a step; what the training costs is of all its steps, of which those
    with smaller batches are slower per token."""
    train = work.train
    found = speed_at(work, train.tokens_per_step / time.step_s, hardware)
    if not train.batch_ramp:
        return found
    elapsed_s = 0.0
    for num_steps, size in train.batch_sizes.phases(train.num_steps):
        phase = replace(train, global_batch_sequences=size, batch_ramp={})
        elapsed_s += num_steps * plan_time(replace(work, train=phase), hardware).step_s
    return replace(found, cost=speed_at(work, train.total_tokens / elapsed_s, hardware).cost)


def speed_at(work: Work, tokens_per_s: float, hardware: HardwareConfig) -> Speed:
    """tokens_per_s: of all devices together, predicted or measured."""
    train, devices = work.train, work.parallel.num_processes
    flops = flops_per_token(work.model, work.memory, train.seq_len)
    share = tokens_per_s / (devices * hardware.peak(train.dtype, train.float8))
    tokens = train.total_tokens
    return Speed(
        tokens_per_s,
        share * flops.model_causal,
        share * flops.model_full,
        share * flops.hardware_causal,
        share * flops.hardware_full,
        training_cost(
            tokens * flops.model_causal,
            devices,
            tokens_per_s * flops.model_causal / devices,
            hardware,
        ),
    )


def plan_headline(work: Work, hardware: HardwareConfig) -> dict[str, float]:
    """The few numbers of a plan that a training is compared with, for tags and tables; named as
    training names what it measures, after `planned_`."""
    time = plan_time(work, hardware)
    speed = training_speed(work, time, hardware)
    found = {
        "max_memory_bytes": plan_memory(work, hardware).allocated,
        "step_s": time.step_s,
        "tokens_per_s": speed.tokens_per_s,
        "mfu_causal": speed.mfu_causal,
        "mfu_full": speed.mfu_full,
        "hfu_causal": speed.hfu_causal,
        "flops": speed.cost.flops,
        "device_hours": speed.cost.device_hours,
        "money": speed.cost.money,
        "energy_kwh": speed.cost.energy_kwh,
    }
    return {f"planned_{name}": value for name, value in found.items() if value is not None}

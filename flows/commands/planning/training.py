"""Shows what a training needs: memory, time and cost of one layout, or of the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.commands.command import names_source, take_words, with_source
from flows.commands.planning.budget import amount, budget_plan, known_corpus
from flows.commands.planning.inference import folder_plan, serving_plan
from flows.compose import compose
from flows.console import table
from flows.run_config import RunConfig
from llm_core.config import ConfigError, to_plain
from llm_core.model.adapter import AdaptedModelConfig, without_factors
from llm_core.planner.cost import Speed, flops_per_token, plan_headline, training_speed
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.layouts import Candidate, Choice, choose_layout, reasons
from llm_core.planner.step import (
    MemoryPlan,
    TimePlan,
    Work,
    memory_of,
    plan_memory,
    plan_ranks,
    plan_time,
)
from llm_core.planner.weights import Coordinates
from llm_core.printing import percent
from tasks.report.sections.planning import MEMORY_PARTS, TIME_PARTS, Parts

INFERENCE_TOKENS = "inference_tokens"
NUM_SHOWN = 5
BAR_CHARS = 40
LETTERS = {
    "weights": "w",
    "gradients": "g",
    "optimizer": "o",
    "activations": "a",
    "logits": "l",
    "copies": "c",
    "allowance": "·",
}
"""Of the parts in bars of ranks."""
OPERATIONS = {
    "six_n": "6 N",
    "eight_n": "8 N: forward again",
    "model_causal": "MFU, half of attention",
    "model_full": "MFU, all of attention",
    "hardware_causal": "HFU, half of attention",
    "hardware_full": "HFU, all of attention",
}


def planned(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The plan that words ask for: overrides, `folder=DIR` of a model that answers, and
    `inference_tokens=N` that the trained one will process."""
    given, overrides = take_words(words, "folder", INFERENCE_TOKENS)
    config = compose(with_source(overrides), lays_out=False)
    if not config.hardware.name:
        raise ConfigError("hardware is not set; choose one, such as hardware=h100")
    if "folder" in given:
        return folder_plan(given["folder"], config)
    tokens = _tokens(given.get(INFERENCE_TOKENS, "0"))
    return training_plan(config, names_source(overrides), tokens)


def _tokens(text: str) -> float:
    try:
        found = float(text)
    except ValueError as error:
        raise ConfigError(
            f"{INFERENCE_TOKENS} ({text}) is not a number; write {INFERENCE_TOKENS}=2e12"
        ) from error
    if not 0 <= found < float("inf"):
        raise ConfigError(f"{INFERENCE_TOKENS} ({text}) must not be negative, and have an end")
    return found


def training_plan(
    config: RunConfig, has_source: bool = False, inference_tokens: float = 0.0
) -> tuple[str, dict[str, Any]]:
    """(text for a terminal, the same as plain values). has_source: whether the tokens of its corpus
    are asked for."""
    hardware, work = config.hardware, config.planned
    choice = None
    if config.parallel.kind == "auto":
        choice = choose_layout(work, hardware, config.parallel.num_processes)
        chosen = choice.best or choice.closest
    else:
        chosen = Candidate(work, plan_memory(work, hardware), plan_time(work, hardware))
    corpus, unknown = known_corpus(config) if has_source else (None, "")
    tokens, budget = budget_plan(chosen.work, corpus, unknown, inference_tokens)
    speed = training_speed(chosen.work, chosen.time, hardware)
    parts = [
        _model_line(chosen.work, hardware),
        tokens,
        _bars("memory of a device", MEMORY_PARTS, chosen.memory, 1e9, "GB", hardware.memory_gb),
        *([_ranks(chosen.work, hardware)] if chosen.work.parallel.pp > 1 else []),
        _bars("time of a step", TIME_PARTS, chosen.time, 1e-3, "ms"),
        _operations(chosen.work, speed),
        _speed_lines(chosen.work, speed, hardware),
    ]
    if chosen.time.traffic:
        parts.append(_traffic(chosen.time))
    if choice is not None:
        parts.append(_layouts(choice, hardware))
    elif chosen.memory.total > hardware.memory_gb * 1e9:
        parts.append(_too_large(chosen, hardware))
    text, serving = serving_plan(
        without_factors(work.model), hardware, config.generate.tensor_parallel
    )
    parts.append(text)
    return "\n\n".join(parts), _plain(chosen, choice, hardware) | {
        "tokens": budget,
        "inference": serving,
    }


def _model_line(work: Work, hardware: HardwareConfig) -> str:
    model = work.model
    head = model.vocab_size * model.dim * (1 if model.tied_embeddings else 2)
    ends = f"{amount(head)} of them embedding and head"
    if isinstance(model, AdaptedModelConfig):
        ends += f"; {amount(model.num_factors())} trained beside them"
    return (
        f"{amount(model.num_parameters())} weights ({ends}) on {work.parallel.num_processes} x"
        f" {hardware.name}: {work.parallel.product}"
    )


def _bars(title: str, parts: Parts, plan: object, unit: float, name: str, room: float = 0.0) -> str:
    """A row per part with a bar of its share; `room`: what there is, in the same unit."""
    values = {label: getattr(plan, field) / unit for field, label, _ in parts}
    total = sum(values.values())
    whole = max(total, room) or 1.0
    rows = [
        (label, f"{value:,.2f}", "█" * round(BAR_CHARS * value / whole))
        for label, value in values.items()
        if value
    ]
    rows.append(("together" + (f", of {room:,.0f}" if room else ""), f"{total:,.2f}", ""))
    return table((title, name, ""), rows)


def _ranks(work: Work, hardware: HardwareConfig) -> str:
    """A bar for each rank of a pipeline, of letters for its parts."""
    plans = plan_ranks(work, hardware)
    whole = plan_memory(work, hardware).total
    rows = []
    for rank, plan in plans.items():
        bar, before = "", 0
        for part, letter in LETTERS.items():
            before += getattr(plan, part)
            # From the sum, so that rounding never moves the end of a bar.
            bar += letter * (round(BAR_CHARS * before / whole) - len(bar))
        rows.append((str(rank), f"{plan.total / 1e9:,.2f}", bar))
    names = ", ".join(f"{letter} {part}" for part, letter in LETTERS.items())
    return table(("rank of the pipeline", "GB", ""), rows) + f"\n{names}"


def _operations(work: Work, speed: Speed) -> str:
    """What the conventions of the field count, and the share of the stated peak that follows."""
    flops = flops_per_token(work.model, work.memory, work.train.seq_len)
    share = speed.mfu_causal / flops.model_causal
    rows = [
        (label, f"{value / 1e9:,.3f}", f"{value * work.train.tokens_per_step / 1e12:,.1f}",
         percent(share * value, ".1"))
        for name, label in OPERATIONS.items()
        for value in [getattr(flops, name)]
    ]  # fmt: skip
    return table(("operations", "GFLOP a token", "TFLOP a step", "of the peak"), rows)


def _speed_lines(work: Work, speed: Speed, hardware: HardwareConfig) -> str:
    cost, devices = speed.cost, work.parallel.num_processes
    money = f", {cost.money:,.0f} $ ({hardware.price_source})" if cost.money else ""
    energy = f", {cost.energy_kwh:,.0f} kWh" if cost.energy_kwh else ""
    return "\n".join(
        [
            f"{speed.tokens_per_s:,.0f} tokens/s, {speed.tokens_per_s / devices:,.0f} a device;"
            f" MFU {percent(speed.mfu_causal, '.1')}, HFU {percent(speed.hfu_causal, '.1')} of the"
            " stated peak (half of attention)",
            f"{cost.flops:.3g} FLOP: {cost.days:,.2f} days, {cost.device_hours:,.0f} device"
            f" hours{money}{energy}",
        ]
    )


def _traffic(time: TimePlan) -> str:
    rows = [
        (
            each.axis,
            "nodes" if each.across_nodes else "a node",
            f"{each.num_bytes / 1e9:,.2f}",
            f"{each.elapsed_s * 1e3:,.1f}",
            f"{each.exposed_s * 1e3:,.1f}",
        )
        for each in time.traffic
    ]
    return table(("sent by a device in a step", "across", "GB", "ms", "ms exposed"), rows)


def _layouts(choice: Choice, hardware: HardwareConfig) -> str:
    rows = [
        (
            each.name,
            f"{each.memory.total / 1e9:,.1f}",
            f"{each.time.step_s * 1e3:,.0f}",
            percent(each.time.exposed_s / each.time.step_s),
            percent(each.time.bubble_s / each.time.step_s),
        )
        for each in choice.fitting[:NUM_SHOWN]
    ]
    header = ("layout", "GB", "ms a step", "exposed", "idle")
    lines = [table(header, rows)] if rows else []
    lines.append(
        f"{choice.num_legal:,} layouts can run, {len(choice.fitting):,} of them fit"
        f" {hardware.memory_gb:,.0f} GB."
    )
    return "\n".join([*lines, *(f"- {reason}" for reason in reasons(choice, hardware))])


def _too_large(chosen: Candidate, hardware: HardwareConfig) -> str:
    lacking = chosen.memory.total / 1e9 - hardware.memory_gb
    return (
        f"does not fit: each device lacks {lacking:,.1f} GB; parallel=auto looks for a layout"
        " that fits"
    )


def _plain(chosen: Candidate, choice: Choice | None, hardware: HardwareConfig) -> dict[str, Any]:
    def values(each: Candidate) -> dict[str, Any]:
        memory: MemoryPlan = each.memory
        return {
            "parallel": to_plain(each.work.parallel),
            "recompute": each.work.memory.recompute,
            "micro_batch_sequences": each.work.train.micro_batch_sequences,
            "memory": to_plain(memory) | {"total": memory.total},
            "time": to_plain(each.time) | {"step_s": each.time.step_s},
            "speed": to_plain(training_speed(each.work, each.time, hardware)),
            "fits": memory.total <= hardware.memory_gb * 1e9,
        }

    work = chosen.work
    found = {"hardware": to_plain(hardware), "weights": work.model.num_parameters()}
    if isinstance(work.model, AdaptedModelConfig):
        found["trained_weights"] = work.model.num_factors()
    found |= values(chosen)
    found["headline"] = plan_headline(work, hardware)
    found["flops_per_token"] = to_plain(
        flops_per_token(work.model, work.memory, work.train.seq_len)
    )
    if work.parallel.pp > 1:
        found["ranks"] = [
            to_plain(memory_of(work, hardware, Coordinates(rank)))
            for rank in range(work.parallel.pp)
        ]
    if choice is not None:
        found["others"] = [values(each) for each in choice.fitting[1:NUM_SHOWN]]
        found["reasons"] = reasons(choice, hardware)
    return found

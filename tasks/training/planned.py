"""Holds a training against what the planner predicts of it, before and after.

Nothing here changes a result. So the train stage imports this module by its name: the planner is in
no key, and may learn without a model being trained again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_core.config import ConfigError, to_plain
from llm_core.planner.cost import speed_at
from llm_core.planner.fit import predict_memory
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.layouts import Candidate, choose_layout
from llm_core.planner.step import Work, memory_of, plan_memory, plan_ranks, plan_time
from llm_core.planner.weights import Coordinates
from llm_core.training.fit import PredictedMemory
from llm_core.training.run_config import RunConfig

STATES = ("weights", "gradients", "optimizer")
MAX_LAYOUTS = 6


def with_prediction(run: RunConfig, hardware: HardwareConfig) -> RunConfig:
    """The run with its predicted memory, which the trainer holds against its own device.

    Raises ConfigError here where `hardware` says that it is too large.
    """
    return replace(run, predicted=require_fit(work_of(run), hardware))


def require_fit(work: Work, hardware: HardwareConfig) -> PredictedMemory:
    """The predicted memory. Raises ConfigError where the devices that the run is meant for are
    known, and too small."""
    predicted = predict_memory(work, hardware)
    if hardware.name:
        predicted.require_room(hardware.memory_gb * 1e9, hardware.name, work.memory.if_too_large)
    return predicted


def work_of(run: RunConfig) -> Work:
    """What the planner reads of a run."""
    return Work(run.trained_model, run.optim, run.train, run.parallel, run.memory)


def beside_measured(
    run: RunConfig,
    hardware: HardwareConfig,
    metrics: Mapping[str, Any],
    held_bytes: Mapping[str, int],
) -> dict[str, Any]:
    """{predicted, measured, ratio: {name: number}} of a finished training, and the plan by part.

    metrics: of the training. held_bytes: {part: bytes} of its first process. States are compared in
    any case; time, and on GPUs the peak of memory, where `hardware` describes the devices.
    """
    work, found = work_of(run), {}
    first = memory_of(work, hardware, Coordinates())
    predicted: dict[str, float] = {f"{part}_bytes": getattr(first, part) for part in STATES}
    measured: dict[str, float] = {f"{part}_bytes": held_bytes.get(part, 0) for part in STATES}
    if hardware.name:
        own = Candidate(work, plan_memory(work, hardware), plan_time(work, hardware))
        found = _by_part(own, hardware) | {"choice": _choice(own, hardware)}
        predicted |= _speed(own, hardware, run.train.tokens_per_step / own.time.step_s)
        measured |= _speed(own, hardware, metrics["tokens_per_s"])
        # A process on a CPU holds libraries and mapped files too, which nobody predicts.
        if metrics["device"] != "cpu":
            predicted["max_memory_bytes"] = own.memory.allocated
            measured["max_memory_bytes"] = metrics["max_memory_bytes"]
    measured = {name: value for name, value in measured.items() if value}
    ratio = {name: value / predicted[name] for name, value in measured.items() if predicted[name]}
    return {"predicted": predicted, "measured": measured, "ratio": ratio} | found


def _speed(own: Candidate, hardware: HardwareConfig, tokens_per_s: float) -> dict[str, float]:
    return {
        "step_s": own.work.train.tokens_per_step / tokens_per_s,
        "tokens_per_s": tokens_per_s,
        "mfu_causal": speed_at(own.work, tokens_per_s, hardware).mfu_causal,
    }


def _by_part(own: Candidate, hardware: HardwareConfig) -> dict[str, Any]:
    """Memory of the ranks that differ, which are those of a pipeline, and time of a step."""
    pp = own.work.parallel.pp
    return {
        "hardware": hardware.name,
        "device_bytes": hardware.memory_gb * 1e9,
        "ranks": [
            {"name": f"pipeline rank {rank}" if pp > 1 else "each process", **to_plain(plan)}
            for rank, plan in plan_ranks(own.work, hardware).items()
        ],
        "time": {name: value for name, value in to_plain(own.time).items() if name.endswith("_s")},
    }


def _choice(own: Candidate, hardware: HardwareConfig) -> dict[str, Any]:
    """The fastest layouts of as many devices, and the run's own among them."""
    try:
        choice = choose_layout(own.work, hardware, own.work.parallel.num_processes)
    except ConfigError as error:  # the planner's rules forbid more than the trainer does
        return {"num_legal": 0, "num_fitting": 0, "refusal": str(error), "layouts": []}
    others = [each for each in choice.fitting[:MAX_LAYOUTS] if each.name != own.name]
    rows = sorted([own, *others], key=lambda each: each.time.step_s)
    return {
        "num_legal": choice.num_legal,
        "num_fitting": len(choice.fitting),
        "layouts": [
            {
                "name": each.name,
                "own": each is own,
                "memory_bytes": each.memory.total,
                "step_s": each.time.step_s,
                "exposed_frac": each.time.exposed_s / each.time.step_s,
                "bubble_frac": each.time.bubble_s / each.time.step_s,
            }
            for each in rows
        ],
    }

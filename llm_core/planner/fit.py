"""Predicts the memory of a run, and of the same run with each setting that saves memory.

For `llm_core.training.fit`, which refuses what its device cannot hold. Standard library only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, fields, replace
from typing import Any

from llm_core.config import ConfigError
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import MemoryPlan, Work, plan_memory
from llm_core.training.fit import PredictedMemory
from llm_core.training.run_config import check_layout

LOSS_CHUNK_TOKENS = 1024
MOST_DEVICES = 1024


def predict_memory(work: Work, hardware: HardwareConfig) -> PredictedMemory:
    """hardware: its allowances count; the size of its memory does not."""
    plan = plan_memory(work, hardware)
    parts = dict(zip((each.name for each in fields(MemoryPlan)), astuple(plan), strict=True))
    smaller = {}
    for settings in _savings(work):
        # Groups refuse some values by themselves, the layout others.
        with contextlib.suppress(ConfigError):
            other = _changed(work, settings)
            check_layout(other.model, other.train, other.parallel, other.memory, other.optim.kind)
            if (size := plan_memory(other, hardware).total) < plan.total:
                words = (f"{name}={value}" for name, value in settings.items())
                smaller[" ".join(words)] = size
    return PredictedMemory(parts, smaller)


def _savings(work: Work) -> Iterator[Mapping[str, Any]]:
    """Settings that may need less: one at a time, the mildest first; then those of one device
    together, and more devices. Results stay the same with each."""
    size, kind = work.train.micro_batch_sequences, work.parallel.kind
    smaller_batches = [size // 2**k for k in range(1, size.bit_length())]
    for each in smaller_batches:
        yield {"train.micro_batch_sequences": each}
    for recompute in ("selective", "full"):
        yield {"memory.recompute": recompute}
    yield {"memory.loss_chunk_tokens": LOSS_CHUNK_TOKENS}
    if kind not in ("fsdp", "hsdp"):
        yield {"parallel.kind": "fsdp"}
    yield {"optim.state_in": "host"}
    yield {"memory.weights_in": "host"}
    together: dict[str, Any] = {"memory.recompute": "full"}
    if smaller_batches:
        together["train.micro_batch_sequences"] = 1
    yield dict(together)
    together["memory.loss_chunk_tokens"] = LOSS_CHUNK_TOKENS
    yield dict(together)
    yield together | {"parallel.kind": "fsdp"}
    yield together | {"optim.state_in": "host"}
    yield together | {"parallel.kind": "fsdp", "memory.weights_in": "host"}
    devices = work.parallel.num_processes
    while (devices := 2 * devices) <= MOST_DEVICES:
        more = {"parallel.kind": "fsdp", "parallel.num_processes": devices}
        yield more
        yield more | together


def _changed(work: Work, settings: Mapping[str, Any]) -> Work:
    """Raises ConfigError."""
    for setting, value in settings.items():
        group, name = setting.split(".")
        work = replace(work, **{group: replace(getattr(work, group), **{name: value})})
    return work

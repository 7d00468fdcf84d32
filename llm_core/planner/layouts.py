"""Chooses how processes share a training: lists the layouts that can run, drops what does not fit,
ranks the rest by predicted time, and says why the first is first.

Rules of the field that arithmetic alone would not give, each with its number: tensor ranks stay
within a node, whose links are ten times faster than the network; a pipeline goes with `ddp` or
`zero1`, since it holds sharded weights and their gradients whole during a step, which saves
nothing; where two layouts are within 2 % of each other the one with fewer axes is taken. Standard
library only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig, Recompute
from llm_core.parallel.config import Kind, ParallelConfig
from llm_core.parallel.degrees import Schedule, divisors
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.step import MemoryPlan, TimePlan, Work, plan_memory, plan_time
from llm_core.planner.weights import num_replicas
from llm_core.printing import percent
from llm_core.training.run_config import check_layout

MAX_CONTEXT_RANKS = 8
CLOSE = 1.02
"""Times within which two layouts count as equally fast: less than predictions are good for."""
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved", "zero_bubble")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Candidate:
    """One way to share the work, with what it is predicted to need."""

    work: Work
    memory: MemoryPlan
    time: TimePlan

    @property
    def name(self) -> str:
        parallel, train = self.work.parallel, self.work.train
        axes = {"pp": parallel.pp, "cp": parallel.cp, "tp": parallel.tp}
        parts = [f"{axis} {size}" for axis, size in axes.items() if size > 1]
        if parallel.pp > 1:
            parts.append(parallel.pp_schedule)
        if (replicas := num_replicas(parallel)) > 1:
            parts.append(f"{parallel.kind} {replicas}")
        if not parts:
            parts.append("one process")
        parts.append(f"micro batch {train.micro_batch_sequences}")
        if self.work.memory.recompute != "none":
            parts.append(f"recompute {self.work.memory.recompute}")
        return ", ".join(parts)

    @property
    def axes(self) -> int:
        parallel = self.work.parallel
        return sum(size > 1 for size in (parallel.pp, parallel.cp, parallel.tp, parallel.dp))


@dataclass(frozen=True)
class Choice:
    """The layouts that fit, the fastest first; where none does, the one that lacks least memory."""

    fitting: tuple[Candidate, ...]
    closest: Candidate
    num_legal: int

    @property
    def best(self) -> Candidate | None:
        return self.fitting[0] if self.fitting else None


def choose_layout(work: Work, hardware: HardwareConfig, num_devices: int) -> Choice:
    """work: its layout, micro batch and recomputation are replaced. Raises ConfigError where no
    layout of so many processes can run at all."""
    room = hardware.memory_gb * 1e9
    fitting: list[Candidate] = []
    closest: Candidate | None = None
    num_legal = 0
    for candidate_work in legal_layouts(work, hardware, num_devices):
        num_legal += 1
        memory = plan_memory(candidate_work, hardware)
        if memory.total > room and closest and memory.total >= closest.memory.total:
            continue
        candidate = Candidate(candidate_work, memory, plan_time(candidate_work, hardware))
        if memory.total <= room:
            fitting.append(candidate)
        if closest is None or memory.total < closest.memory.total:
            closest = candidate
    if closest is None:
        raise ConfigError(
            f"parallel.kind (auto) finds no layout of num_processes={num_devices} that can run;"
            f" without other axes: {_why_not_plain(work, num_devices)}"
        )
    return Choice(tuple(_ranked(fitting)), closest, num_legal)


def _why_not_plain(work: Work, num_devices: int) -> str:
    """Why data-parallel processes alone cannot run."""
    kind: Kind = "none" if num_devices == 1 else "ddp"
    if work.memory.weights_in != "device":
        kind = "fsdp"
    train = replace(work.train, micro_batch_sequences=1)
    try:
        parallel = replace(
            work.parallel, kind=kind, num_processes=num_devices, dp_shard=0, pp=1, cp=1, tp=1
        )
        check_layout(work.model, train, parallel, work.memory, work.optim.kind)
    except ConfigError as error:
        return str(error)
    raise AssertionError("a layout that can run was not listed")


def _ranked(fitting: Sequence[Candidate]) -> list[Candidate]:
    """By time; the first gives way to a plainer one that is as fast."""
    ranked = sorted(fitting, key=lambda each: each.time.step_s)
    if ranked:
        as_fast = [each for each in ranked if each.time.step_s <= CLOSE * ranked[0].time.step_s]
        plainest = min(as_fast, key=lambda each: (each.axes, each.time.step_s))
        ranked.remove(plainest)
        ranked.insert(0, plainest)
    return ranked


def legal_layouts(work: Work, hardware: HardwareConfig, num_devices: int) -> Iterator[Work]:
    """All that the trainer would accept and no rule forbids."""
    # `every` lies between none and full.
    recomputes: list[Recompute] = [each for each in get_args(Recompute) if each != "every"]
    for parallel in _products(work, hardware, num_devices):
        for size in MICRO_BATCHES:
            train = replace(work.train, micro_batch_sequences=size)
            for recompute in recomputes:
                memory: MemoryConfig = replace(work.memory, recompute=recompute)
                with contextlib.suppress(ConfigError):
                    check_layout(work.model, train, parallel, memory, work.optim.kind)
                    yield replace(work, train=train, parallel=parallel, memory=memory)


def _products(work: Work, hardware: HardwareConfig, num_devices: int) -> Iterator[ParallelConfig]:
    asked = work.parallel
    for tp in divisors(num_devices):
        if tp > hardware.devices_per_node or tp > work.model.num_heads:
            continue
        for cp in divisors(num_devices // tp):
            # Slices of rows pay where rows are long: attention then outweighs what is exchanged.
            if cp > MAX_CONTEXT_RANKS or (cp > 1 and work.train.seq_len < 16384):
                continue
            for pp in divisors(num_devices // tp // cp):
                if pp > work.model.num_layers:
                    continue
                for kind, share in _kinds(work, num_devices, pp, tp, hardware):
                    for schedule in SCHEDULES if pp > 1 else SCHEDULES[:1]:
                        with contextlib.suppress(ConfigError):
                            yield replace(
                                asked,
                                kind=kind,
                                num_processes=num_devices,
                                dp_shard=share,
                                pp=pp,
                                cp=cp,
                                tp=tp,
                                pp_schedule=schedule,
                                pp_stages_per_rank=0,
                            )


def _kinds(
    work: Work, num_devices: int, pp: int, tp: int, hardware: HardwareConfig
) -> Iterator[tuple[Kind, int]]:
    """(kind, dp_shard)."""
    replicas = num_devices // tp // pp
    yield ("none" if num_devices == 1 else "ddp"), 0
    if replicas > 1:
        yield "zero1", 0
    if pp > 1:
        return
    if replicas > 1:
        yield "zero2", 0
    # One device too takes weights from main memory by FSDP.
    if replicas > 1 or work.memory.weights_in != "device":
        yield "fsdp", 0
    # Shards within a node, which tensor ranks share with them.
    share = hardware.devices_per_node // tp
    if 1 < share < replicas and replicas % share == 0:
        yield "hsdp", share


def reasons(choice: Choice, hardware: HardwareConfig) -> list[str]:
    """Sentences with their numbers: why the first layout, and what each of the next ones costs
    instead."""
    best = choice.best
    if best is None:
        return _ways_to_fit(choice, hardware)
    parallel, found = best.work.parallel, []
    if parallel.tp > 1:
        found.append(
            f"{parallel.tp} tensor ranks stay within the {hardware.devices_per_node} devices of a"
            f" node ({hardware.in_node / 1e9:.0f} GB/s; {hardware.between_nodes / 1e9:.1f} to"
            " another node)"
        )
    if parallel.pp > 1:
        found.append(
            f"a pipeline of {parallel.pp} sends only the stream between stages; it idles"
            f" {percent(best.time.bubble_frac)} of a step with {best.work.micro_batches} micro"
            " batches"
        )
    if parallel.kind in ("fsdp", "hsdp", "zero2") and best.memory.total:
        found.append(
            f"weights are sharded: whole they and their state would take"
            f" {16 * best.work.model.num_parameters() / parallel.tp / parallel.pp / 1e9:.0f} GB of"
            f" {hardware.memory_gb:.0f}"
        )
    for other in choice.fitting[1:4]:
        found.append(f"{other.name}: {_difference(best, other)}")
    return found


def _difference(best: Candidate, other: Candidate) -> str:
    """What most of the longer time goes to."""
    ratio = other.time.step_s / best.time.step_s
    parts = {
        "waits for traffic": other.time.exposed_s - best.time.exposed_s,
        "idles in the pipeline": other.time.bubble_s - best.time.bubble_s,
        "computes activations again": other.time.recompute_s - best.time.recompute_s,
        "updates more state": other.time.optimizer_s - best.time.optimizer_s,
        "waits for launches": other.time.host_s - best.time.host_s,
        "computes": other.time.computed_s - best.time.computed_s,
    }
    name, longer_s = max(parts.items(), key=lambda item: item[1])
    if longer_s <= 0:
        return f"{ratio:.2f} times as long; as fast, with more axes"
    return f"{ratio:.2f} times as long: {name} for {longer_s * 1e3:,.0f} ms a step more"


def _ways_to_fit(choice: Choice, hardware: HardwareConfig) -> list[str]:
    """One change at a time."""
    closest, room = choice.closest, hardware.memory_gb * 1e9
    lacking = (closest.memory.total - room) / 1e9
    found = [f"no layout fits: the smallest ({closest.name}) lacks {lacking:,.1f} GB a device"]
    states = closest.memory.weights + closest.memory.gradients + closest.memory.optimizer
    if closest.memory.total - closest.memory.optimizer <= room:
        found.append("optim.state_in=host would fit: moments rest in main memory")
    if closest.memory.total - states <= room:
        found.append("memory.weights_in=host would fit: shards rest in main memory too")
    devices = closest.work.parallel.num_processes
    rest = closest.memory.total - states
    if rest < room:
        needed = next(
            n for n in (2**k * devices for k in range(1, 30)) if states * devices / n + rest <= room
        )
        found.append(f"{needed} devices would fit, sharded over all")
    if closest.memory.logits > 0.2 * closest.memory.total:
        found.append("memory.loss_chunk_tokens=1024 would take logits in pieces")
    return found

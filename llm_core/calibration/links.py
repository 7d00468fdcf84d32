"""Times collectives by size and fits what one costs to start and to move bytes.

t = start + sent / B, with B the bus bandwidth; weighted so that each size counts for its relative
error.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import nnls

from llm_core.calibration.collectives import Kind, bus_factor, prepare
from llm_core.planner.hardware import LinkConfig
from llm_core.planner.traffic import collective_hops

SIZES = tuple(1 << power for power in range(10, 25, 2))
"""Bytes, from 1 KiB to 16 MiB."""
PLANNED: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""Those from which the planner predicts."""


@dataclass(frozen=True)
class Timing:
    """One collective of one size in one group."""

    kind: Kind
    processes: int
    """Of the group."""
    dtype: str
    in_place: bool
    num_bytes: int
    """S of nccl-tests."""
    median_s: float
    min_s: float
    right: bool

    @property
    def algorithm_gb_s(self) -> float:
        return self.num_bytes / self.median_s / 1e9

    @property
    def bus_gb_s(self) -> float:
        return self.algorithm_gb_s * bus_factor(self.kind, self.processes)


def time_collective(
    kind: Kind,
    num_bytes: int,
    group: dist.ProcessGroup,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    in_place: bool = False,
    num_times: int = 20,
    num_warm_up: int = 5,
) -> Timing:
    """Checked first, and again after the repeats. Collective over the group."""
    job = prepare(kind, num_bytes // dtype.itemsize, group, dtype, device, in_place)
    right = job.is_right()
    times_s = job.times_s(num_times, num_warm_up)
    right = job.is_right() and right
    size, name = dist.get_world_size(group), str(dtype).removeprefix("torch.")
    found = statistics.median(times_s), min(times_s)
    return Timing(kind, size, name, in_place, job.num_bytes, *found, right)


def fit_link(timings: Sequence[Timing]) -> LinkConfig:
    """Of one kind in groups of one size; of the undisturbed times."""
    kind, size = timings[0].kind, timings[0].processes
    seconds = np.array([each.min_s for each in timings])
    sent = np.array([each.num_bytes * bus_factor(kind, size) for each in timings])
    rows = np.stack([np.ones_like(seconds), sent], axis=1) / seconds[:, None]
    start_s, s_per_byte = nnls(rows, np.ones_like(seconds))[0]
    # A time that size does not change has no bandwidth: as fast as the largest was.
    gb_s = 1e-9 / s_per_byte if s_per_byte > 0 else max(each.bus_gb_s for each in timings)
    return LinkConfig(start_s / collective_hops(size) * 1e6, gb_s)


def fit_links(timings: Iterable[Timing]) -> dict[str, LinkConfig]:
    """Of each kind."""
    by_kind: dict[str, list[Timing]] = {}
    for each in timings:
        by_kind.setdefault(each.kind, []).append(each)
    return {kind: fit_link(found) for kind, found in by_kind.items()}

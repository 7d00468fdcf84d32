"""Holds collectives of throttled groups against the arithmetic of their links: `python -m
tests.support.distributed.throttled FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.engine import throttled
from llm_core.calibration.collectives import Kind, bus_factor, make_groups, prepare
from llm_core.planner.traffic import collective_hops
from llm_core.printing import show
from tests.support.distributed.forks import fork_ranks

START_S, BYTES_PER_S = 5e-3, 4e6
NUMEL = 20_000
KINDS: tuple[Kind, ...] = (
    "broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send",
)  # fmt: skip


def check() -> None:
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    throttled.register(START_S, BYTES_PER_S)
    slow = dist.PrefixStore("throttled", store)
    dist.init_process_group(throttled.NAME, store=slow, rank=rank, world_size=world)
    for size in (2, 4):
        group = make_groups(size)
        for kind in KINDS:
            job = prepare(kind, NUMEL, group)
            assert job.is_right(), (kind, size)
            hops = 1 if kind == "send" else collective_hops(size)
            least_s = hops * START_S + job.num_bytes * bus_factor(kind, size) / BYTES_PER_S
            dist.barrier(group=group)
            began = time.perf_counter()
            job.run()
            elapsed_s = time.perf_counter() - began
            assert elapsed_s >= 0.99 * least_s, (kind, size, elapsed_s, least_s)
    # Two at once share a link, and hold up neither computation nor each other's result.
    group, began = make_groups(4), time.perf_counter()
    both = [torch.full((NUMEL,), float(value)) for value in (1, 2)]
    works = [dist.all_reduce(each, group=group, async_op=True) for each in both]
    one_s = collective_hops(4) * START_S + both[0].nbytes * 1.5 / BYTES_PER_S
    assert time.perf_counter() - began < one_s
    futures = [work.get_future() for work in works if work is not None]
    for work in works:
        assert work is not None
        work.wait()
    assert time.perf_counter() - began >= 2 * 0.99 * one_s
    assert [each[0].item() for each in both] == [4.0, 8.0]
    assert [future.value()[0][0].item() for future in futures] == [4.0, 8.0]
    # A message from anyone is as late, and its sender is known.
    dist.barrier()
    began, arrived = time.perf_counter(), torch.zeros(NUMEL)
    if rank == 0:
        assert {dist.recv(arrived) for _ in range(world - 1)} == set(range(1, world))
        assert time.perf_counter() - began >= (world - 1) * 0.99 * arrived.nbytes / BYTES_PER_S
    else:
        dist.send(torch.full((NUMEL,), float(rank)), 0)
    show("right")


if __name__ == "__main__":
    fork_ranks(4, Path(sys.argv[1]), check)

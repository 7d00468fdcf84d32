"""One process of many, without the others: layouts can be built and looked at, nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.ranks import Ranks, make_meshes

CPU = torch.device("cpu")


@contextmanager
def as_process(rank: int, parallel: ParallelConfig) -> Iterator[Ranks]:
    """This process as one of many, of which there are no others."""
    world = parallel.num_processes
    if parallel.kind == "none":
        yield Ranks(0, 1, CPU)
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield Ranks(rank, world, CPU, *make_meshes(parallel, CPU))
    finally:
        dist.destroy_process_group()

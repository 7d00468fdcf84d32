"""Ranks that are forks of one process: imports, the dearest part of a small run, are paid for once.

Only for programs that start for this and have run nothing yet: forks of a process with threads may
hang.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist


def fork_ranks(world: int, folder: Path, run: Callable[[], None]) -> None:
    """`run` in `world` processes joined by gloo through a file in `folder`. Exits with 1 as soon as
    one of them fails."""
    store = folder / "store"
    store.unlink(missing_ok=True)
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(rank, world, store, run), daemon=True)
        for rank in range(world)
    ]
    if not all_succeed(ranks):
        sys.exit(1)


def all_succeed(ranks: Sequence[BaseProcess]) -> bool:
    """Run them to their end; where one fails, the others, which may wait for it, are ended too."""
    for rank in ranks:
        rank.start()
    while any(rank.exitcode is None for rank in ranks) and not any(rank.exitcode for rank in ranks):
        time.sleep(0.02)
    failed = any(rank.exitcode for rank in ranks)
    for rank in ranks:
        rank.kill()
        rank.join()
    return not failed


def _rank(rank: int, world: int, store: Path, run: Callable[[], None]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    run()
    dist.destroy_process_group()

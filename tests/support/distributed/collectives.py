"""Checks every collective in real gloo groups of 2 and of 4 processes: `python -m
tests.support.distributed.collectives FOLDER`. Whoever finds one wrong says so and fails."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from llm_core.calibration.collectives import (
    IN_PLACE,
    KINDS,
    make_groups,
    prepare,
    uneven_exchange_is_right,
)
from llm_core.parallel.fsdp import ExchangeAndSum
from llm_core.printing import show
from tests.support.distributed.forks import fork_ranks

CASES = (
    (1, torch.float32),
    (1000, torch.bfloat16),
    (1003, torch.int64),
    (4099, torch.float32),
)
"""(numbers, dtype); 1,003 and 4,099 divide by no group, and 1 leaves pieces empty."""


def ones(rank: int, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones(numel, dtype=dtype, device=device)


def mistaken(rank: int, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What this process sends, expected of all others too."""
    return torch.full((numel,), dist.get_rank() + 1, dtype=dtype, device=device)


def check_exchange_and_sum(group: dist.ProcessGroup, dtype: torch.dtype) -> None:
    """Numbers that 16 bits hold, and a sum that they hold only if it is rounded once."""
    size, rank = group.size(), group.rank()
    sent = torch.arange(7 * size).to(dtype) + rank
    sent[::7] = 256 if rank == 0 else 1
    out = torch.empty(7, dtype=dtype)
    ExchangeAndSum()(out, sent, group, dist.ReduceOp.SUM)
    expected = size * torch.arange(7 * rank, 7 * rank + 7) + size * (size - 1) // 2
    expected[0] = 256 + size - 1
    assert torch.equal(out, expected.to(dtype)), (out, expected)


def check() -> None:
    world = dist.group.WORLD
    assert world is not None
    of_ones = prepare("all_reduce", 5, world, fill=ones)
    assert of_ones.is_right() and of_ones.result.tolist() == [4.0] * 5
    for size in (2, 4):
        group = make_groups(size)
        for kind in KINDS:
            for in_place in (False, True) if kind in IN_PLACE else (False,):
                for length, dtype in CASES:
                    job = prepare(kind, length, group, dtype, in_place=in_place)
                    assert job.is_right(), (kind, size, length, dtype, in_place)
                for _ in range(100 if size == 4 and not in_place else 0):
                    job.run()
                assert job.is_right(), (kind, size, in_place, "after repeats")
            if kind != "barrier":
                assert not prepare(kind, 1000, group, fill=mistaken).is_right(), kind
        assert uneven_exchange_is_right(group, torch.device("cpu"))
        for dtype in (torch.bfloat16, torch.float64):
            check_exchange_and_sum(group, dtype)
    show("right")


if __name__ == "__main__":
    fork_ranks(4, Path(sys.argv[1]), check)

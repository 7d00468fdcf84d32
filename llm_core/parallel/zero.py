"""Shares optimizer state among processes with the same weights: ZeRO-1 (Rajbhandari et al., 2020).

Every process owns a run of rows of each weight, keeps the optimizer's state of these alone, and
updates them from the gradient that all have after its sum; then rows are gathered, many weights at
a time. Rows need not divide: the last processes have fewer, or none. Cost: one copy of the weights
sent per step, and a buffer of `BUCKET` elements; saved: all but 1 / processes of the state. Rules
that work element by element give the update of one process to the bit, if the gradient is. Left
out: sharded gradients, for which `zero2` goes through FSDP.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from llm_core.compat import all_gather_single
from llm_core.parallel.buckets import split_buckets
from llm_core.parallel.cuts import part_of

BUCKET = 1 << 24
"""Elements of weights gathered at once: enough that sending takes the time, not starting to."""


@torch.no_grad()
def share_rows(weights: Sequence[nn.Parameter], mesh: DeviceMesh) -> None:
    """After each process has updated its rows of the weights: give all rows to all. Collective."""
    for bucket in split_buckets(weights, BUCKET):
        _gather_rows(bucket, mesh)


def rows_of(tensor: Tensor, rank: int, size: int) -> Tensor:
    """The rows of one process, a view: equal runs of dim 0; the last may be short or empty."""
    part = part_of(len(tensor), rank, size)
    return tensor[part.start : part.stop]


def _gather_rows(weights: list[nn.Parameter], mesh: DeviceMesh) -> None:
    """Give every process the rows of all others, in one exchange."""
    size = mesh.size()
    # The first process has most rows, and room is left for as many of each.
    lengths = [rows_of(p, 0, size).numel() for p in weights]
    mine = weights[0].new_zeros(sum(lengths))
    for p, buffer in zip(weights, mine.split(lengths), strict=True):
        rows = rows_of(p, mesh.get_local_rank(), size)
        buffer[: rows.numel()] = rows.flatten()
    everyone = mine.new_empty(size * len(mine))
    all_gather_single(everyone, mine, group=mesh.get_group())
    for rank, theirs in enumerate(everyone.view(size, -1)):
        for p, buffer in zip(weights, theirs.split(lengths), strict=True):
            rows = rows_of(p, rank, size)
            rows.copy_(buffer[: rows.numel()].view_as(rows))

"""Sends many tensors in few messages: joined to flat buckets, as DDP does (Li et al. 2020, section
3.2.3).

A message costs its start, some ten microseconds, and a model has hundreds of small weights. The
next bucket is filled while the last one is under way, so two exist at once. A tensor that fills a
bucket alone is sent from where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

SUM_BUCKET = 25 * (1 << 20) // 4
"""Elements of gradients summed at once: 25 MB of float32, the size of DDP's."""

AnyTensor = TypeVar("AnyTensor", bound=Tensor)


def split_buckets(tensors: Sequence[AnyTensor], max_elements: int) -> Iterator[list[AnyTensor]]:
    """Runs of tensors of at most `max_elements` together, or of one that has more."""
    bucket: list[AnyTensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > max_elements:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


def sum_over(tensors: Sequence[Tensor], group: dist.ProcessGroup, device: torch.device) -> None:
    """Put the sum over the processes of a group into each tensor. All have one dtype, on all
    processes the same shapes.

    device: where sums are made; tensors may lie elsewhere.
    """
    before: tuple[list[Tensor], Tensor, dist.Work | None] | None = None
    for bucket in split_buckets(tensors, SUM_BUCKET):
        first = bucket[0]
        alone = len(bucket) == 1 and first.is_contiguous() and first.device.type == device.type
        flat = first.view(-1) if alone else torch.cat([t.flatten() for t in bucket]).to(device)
        work = dist.all_reduce(flat, group=group, async_op=True)
        if before is not None:
            _give_back(*before)
        before = [] if alone else bucket, flat, work
    if before is not None:
        _give_back(*before)


def _give_back(bucket: list[Tensor], flat: Tensor, work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
    if bucket:
        pieces = flat.split([tensor.numel() for tensor in bucket])
        for tensor, summed in zip(bucket, pieces, strict=True):
            tensor.copy_(summed.view_as(tensor))

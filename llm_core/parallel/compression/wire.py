"""Exchanges tensors between the processes of a group, and counts the bytes that this one sends.

A sum of S bytes over n processes counts 2 (n - 1) / n x S, as a ring sends it; a gather or an
exchange of S bytes in all counts (n - 1) / n x S.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.compat import all_gather_single
from llm_core.parallel.compression.blocks import BLOCK
from llm_core.parallel.compression.codecs import Codec


class Wire:
    """The processes that hold the same weights. group: None: one process, which sends nothing."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.sent_bytes = 0.0

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Put the sum over processes into each tensor, in one message."""
        if not tensors or self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat, group=self.group)
        self._count(2 * flat.nbytes)
        pieces = flat.split([tensor.numel() for tensor in tensors])
        for tensor, summed in zip(tensors, pieces, strict=True):
            tensor.copy_(summed.view_as(tensor))

    def exchange(self, chunks: Tensor) -> Tensor:
        """Chunk i of process j, as chunk j of process i; chunks lie along dim 0."""
        if self.size == 1:
            return chunks
        received = torch.empty_like(chunks)
        dist.all_to_all_single(received, chunks.contiguous(), group=self.group)
        self._count(chunks.nbytes)
        return received

    def gather(self, chunk: Tensor) -> Tensor:
        """The chunks of all along dim 0, one after another."""
        if self.size == 1:
            return chunk
        whole = chunk.new_empty(self.size * len(chunk), *chunk.shape[1:])
        all_gather_single(whole, chunk.contiguous(), group=self.group)
        self._count(whole.nbytes)
        return whole

    def _count(self, num_bytes: float) -> None:
        self.sent_bytes += num_bytes * (self.size - 1) / self.size


def coded_sum(
    x: Tensor, codec: Codec, wire: Wire, correction: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(sum over processes, what was lost of x here, what was lost of this process's chunk of the
    sum).

    x: a flat vector of `padded_length`, earlier losses included. Each process adds up one chunk in
    the order of processes, so all get the same bits, which one process can reproduce. correction:
    added to the sum of the chunk before it is sent on.
    """
    sent = codec.encode(x.view(-1, BLOCK))
    lost_here = x - codec.decode(sent, x.dtype).flatten()
    received = wire.exchange(sent.unflatten(0, (wire.size, -1)))
    chunk = torch.zeros(len(x) // wire.size, dtype=x.dtype, device=x.device)
    for coded in received:
        chunk += codec.decode(coded, x.dtype).flatten()
    if correction is not None:
        chunk += correction
    returned = codec.encode(chunk.view(-1, BLOCK))
    lost_of_chunk = chunk - codec.decode(returned, x.dtype).flatten()
    return codec.decode(wire.gather(returned), x.dtype).flatten(), lost_here, lost_of_chunk

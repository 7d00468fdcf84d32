"""Who updates which weights when processes with the same weights share the optimizer's state? ZeRO-1 (Rajbhandari et al., 2020).

Every process owns a run of rows of each weight, keeps the two moments of these alone, and updates them from the gradient
that all have after its sum; then rows are gathered, many weights at a time. Rows need not divide: the last processes have
fewer, or none. Cost: one copy of the weights sent per step, and a buffer of `BUCKET` elements; saved: all but 1 / processes
of the moments. AdamW works element by element, so the update is that of one process to the bit, if the gradient is.
Left out: sharded gradients, for which `zero2` goes through FSDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from llm_core.compat import all_gather_single

BUCKET = 1 << 24
"""Elements of weights gathered at once: enough that sending, not starting to send, takes the time."""


class SharedAdamW(torch.optim.AdamW):
    """AdamW over this process's rows of each weight; its `param_groups` and `state` are of these rows.

    groups: as for AdamW, of whole weights that are equal on all processes of the one axis of `mesh`.
    """

    def __init__(self, groups: list[dict[str, Any]], mesh: DeviceMesh, **options: Any) -> None:
        self.mesh = mesh
        self.weights: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        # The rows are a view of the weight: what AdamW writes to them is in the model.
        self.rows = {p: nn.Parameter(rows_of(p.detach(), mesh.get_local_rank(), mesh.size())) for p in self.weights}
        super().__init__([group | {"params": [self.rows[p] for p in group["params"]]} for group in groups], fused=True, **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the weights on all processes. Every one must call it, with equal gradients."""
        assert closure is None, "gradients are summed over processes before the step"
        rank, size = self.mesh.get_local_rank(), self.mesh.size()
        for weight, rows in self.rows.items():
            rows.grad = None if weight.grad is None else rows_of(weight.grad, rank, size)
        super().step()
        for rows in self.rows.values():
            rows.grad = None
        for bucket in _buckets(self.weights):
            gather_rows(bucket, self.mesh)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the whole weights."""
        for weight in self.weights:
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()


def rows_of(tensor: Tensor, rank: int, size: int) -> Tensor:
    """The rows of one process, a view: equal runs of the first dim, of which the last may be short or empty."""
    each = -(-len(tensor) // size)
    begin = min(rank * each, len(tensor))
    return tensor[begin : min(begin + each, len(tensor))]


def gather_rows(weights: list[nn.Parameter], mesh: DeviceMesh) -> None:
    """Give every process the rows of all others, in one exchange."""
    size = mesh.size()
    lengths = [-(-len(p) // size) * p[0].numel() for p in weights]
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


def _buckets(weights: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for weight in weights:
        if bucket and sum(p.numel() for p in bucket) + weight.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket

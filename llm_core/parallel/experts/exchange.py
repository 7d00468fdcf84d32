"""Sends tokens to the processes that hold their experts, and the outputs back (GShard, Lepikhin et
al., 2021).

The processes that share one set of weights share out the experts too: each has whole ones, in the
rows that FSDP would give it, and they are never gathered. So checkpoints, optimizers and norms
treat them as they treat shards of FSDP. Two all-to-all exchanges of each layer take rows to the
experts and back, two more their gradients. An expert sees the rows of all these processes, so its
gradient is whole but for the groups that hold copies of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from llm_core.model.experts.feed_forward import Experts, SparseFeedForward, Stacked
from llm_core.model.experts.pairs import Permuted
from llm_core.model.transformer import Transformer

# P pairs of this process's tokens · S pairs that arrive · E experts of all these processes
# D model width


@dataclass(frozen=True)
class Sent:
    """Rows on their way to their experts."""

    own_PD: Tensor
    num_rows: int
    """Of all pairs, those of other tensor ranks included, which stay behind the own ones."""
    counts: Tensor
    """int64 pairs that arrive for each expert of this process, and 0 others."""
    order_S: Tensor
    """Of the rows that arrive, by source, the order by expert."""
    leaving: list[int]
    arriving: list[int]
    """Rows for each process, and from each."""
    begun: _Begun


class TokenExchange:
    """That of one layer. group: the processes that share out its experts, in their order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self.size = group, dist.get_world_size(group)

    def send(self, x_PD: Tensor, counts: Tensor) -> Sent:
        """Begin to send rows, which are in order of experts. counts: pairs of each expert of these
        processes, then of others. Waits for the device, since hosts must know how many come."""
        own_E = counts[:-1].contiguous()
        theirs = torch.empty_like(own_E)  # [process, expert of this one]
        dist.all_to_all_single(theirs, own_E, group=self._group)
        both = torch.stack([own_E, theirs]).view(2, self.size, -1)
        leaving, arriving = both.sum(dim=2).tolist()
        each = both.shape[2]
        experts = torch.arange(each, device=x_PD.device).repeat(self.size)
        order_S = experts.repeat_interleave(theirs, output_size=sum(arriving)).argsort(stable=True)
        own_PD = x_PD[: sum(leaving)]
        begun = _begin(own_PD.detach(), leaving, arriving, self._group)
        here = torch.cat([both[1].sum(dim=0), counts.new_zeros(1)])
        return Sent(own_PD, len(x_PD), here, order_S, leaving, arriving, begun)

    def answer(self, sent: Sent, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Rows as they were sent, through `compute(rows, pairs of each expert)`; zeros for pairs of
        other tensor ranks."""
        splits = sent.leaving, sent.arriving, self._group
        x_SD = cast(Tensor, _Travel.apply(sent.own_PD, *splits, sent.begun))
        inverse_S = sent.order_S.argsort()
        y_SD = compute(Permuted.apply(x_SD, sent.order_S, inverse_S), sent.counts)
        y_SD = Permuted.apply(y_SD, inverse_S, sent.order_S)
        back = sent.arriving, sent.leaving, self._group
        y_PD = cast(Tensor, _Travel.apply(y_SD, *back, _begin(y_SD.detach(), *back)))
        rest = y_PD.new_zeros(sent.num_rows - len(y_PD), y_PD.shape[1])
        return torch.cat([y_PD, rest]) if len(rest) else y_PD


def sparse_layers(model: Transformer) -> Iterator[SparseFeedForward]:
    """The layers of experts of this process."""
    return (block.ffn for block in model.own_blocks if isinstance(block.ffn, SparseFeedForward))


def share_out_experts(model: Transformer, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Leave this process whole experts of each layer, and have tokens sent to the rest; the weights
    that FSDP must leave alone. Weights are on the meta device.

    mesh: of the processes with the same layers and tensor parts; of two axes the first replicates.
    """
    group = mesh.get_group(mesh.ndim - 1)
    found: set[nn.Parameter] = set()
    for layer in sparse_layers(model):
        experts: Experts = layer.experts
        experts.exchange = TokenExchange(group)
        for stacked in experts.stacked:
            stacked.weight = _own_rows(stacked, mesh)
            stacked.here = _local
            found.add(stacked.weight)
    return found


def _own_rows(stacked: Stacked, mesh: DeviceMesh) -> nn.Parameter:
    whole, size = stacked.weight, mesh.size(mesh.ndim - 1)
    number = len(whole) // stacked.rows
    assert number % size == 0, "check_expert_ranks refuses others"
    rows = torch.empty(len(whole) // size, *whole.shape[1:], dtype=whole.dtype, device="meta")
    placements: list[Placement] = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
    shard = DTensor.from_local(rows, mesh, placements, run_check=False)
    return nn.Parameter(shard, requires_grad=whole.requires_grad)


def _local(weight: Tensor) -> Tensor:
    assert isinstance(weight, DTensor)
    return weight.to_local()


class _Begun:
    """An exchange under way. Not a tensor, so autograd does not see its result before it is there.

    `wait` gives the rows that have arrived.
    """

    def __init__(self, rows: Tensor, work: dist.Work | None) -> None:
        self._rows, self._work = rows, work

    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
        return self._rows


def _begin(
    x: Tensor, leaving: Sequence[int], arriving: Sequence[int], group: dist.ProcessGroup
) -> _Begun:
    rows = x.new_empty(sum(arriving), *x.shape[1:])
    splits = list(arriving), list(leaving)
    work = dist.all_to_all_single(rows, x.contiguous(), *splits, group=group, async_op=True)
    return _Begun(rows, work)


class _Travel(torch.autograd.Function):
    """Rows as they arrive from each process; gradients travel back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        leaving: Sequence[int],
        arriving: Sequence[int],
        group: dist.ProcessGroup,
        begun: _Begun,
    ) -> Tensor:
        ctx.back = arriving, leaving, group
        return begun.wait()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _begin(grads[0], *ctx.back).wait(), None, None, None, None

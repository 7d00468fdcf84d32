"""Runs one optimizer step or forward pass through a model whose layers lie on several processes.

Micro batches go through the stages by a schedule of torch.distributed.pipelining: GPipe (Huang et
al. 2019), 1F1B and interleaved 1F1B (Narayanan et al. 2021), zero bubble and its V shape (Qi et al.
2023, 2024), DualPipeV (DeepSeek 2025); `naive` sends one micro batch at a time. The loss of a micro
batch is divided by the global count of targets before its backward pass, which the schedule must
not scale again, so gradients are those of one process. Every process of a pipeline gets the same
ids, targets and documents: middle stages need the documents for their masks.

A forward pass without backward is a loop over stages, for which schedules do not pay. Cost:
activations go from stage to stage once each way; a tied embedding adds one exchange of its gradient
between the ends. Left out: compiled stages under zero bubble and DualPipeV, which torch does not
split; `llm_core.training.run_config` refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.tensor import DTensor

from llm_core.compat import PipelineStage
from llm_core.data.sources import SourceSums
from llm_core.model.transformer import Transformer
from llm_core.parallel.buckets import sum_over
from llm_core.parallel.degrees import StagePlan
from llm_core.parallel.fsdp import reshard
from llm_core.parallel.pipelining.stages import has_copies

# B rows of one data-parallel rank · T tokens · V vocabulary · D model width

CLASSES = {
    "naive": "GPipe",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zero_bubble_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}


@dataclass
class Pipeline:
    """One process's place in a pipeline.

    model: all that this process holds, by global names; parts: the same modules, a model for each
    of its stages. stream_dtype: of what stages hand on. stream_pieces: processes over which its
    tokens are cut, by sequence parallelism. replicas: the group that holds the same weights and
    must sum their gradients; None where FSDP does, or for one process.
    """

    plan: StagePlan
    group: dist.ProcessGroup
    model: Transformer
    parts: dict[int, nn.Module]
    device: torch.device
    stream_dtype: torch.dtype = torch.float32
    stream_pieces: int = 1
    replicas: dist.ProcessGroup | None = None
    _count: Tensor = field(default_factory=lambda: torch.ones(()))
    _found: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Losses of micro batches, and what was handed on with them."""
    _schedules: dict[int, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """Whether losses are computed here."""
        return self.plan.num_stages - 1 in self.parts

    def accumulate_gradients(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        count: Tensor,
        num_micro_batches: int,
        by_source: SourceSums | None = None,
        **rows: Tensor,
    ) -> Tensor:
        """Gradients of (summed loss / count) over all ranks; this process's share of the loss, of
        nats alone, 0 but on the last stage.

        by_source: gets the losses of each token, on the last stage.
        rows: keywords of the model with one row per row of ids, as positions_BT and documents_BK.
        """
        self._count, self._found = count, []
        # The model has the targets already; what a schedule hands on with the output of each micro
        # batch is the sources.
        handed_on = targets_BT if by_source is None else by_source.sources_BT
        at_once = 1 if self.plan.schedule == "naive" else num_micro_batches
        schedule = self._schedule(at_once)
        size = len(ids_BT) // (num_micro_batches // at_once)
        for begin in range(0, len(ids_BT), size):
            piece = slice(begin, begin + size)
            schedule.step(
                *([ids_BT[piece]] if 0 in self.parts else []),
                target=handed_on[piece] if self.is_last else None,
                return_outputs=False,
                targets_BT=targets_BT[piece],
                **{name: value[piece] for name, value in rows.items()},
            )
        # The last ones: from torch 2.13 on, a schedule first tries how its stages fit together,
        # with losses of their own.
        found = self._found[-num_micro_batches:]
        if by_source is not None:
            for losses_BT, sources_BT in found:
                by_source.add(losses_BT, sources_BT)
        if self.replicas is not None:
            # DDP's hooks would not see the split backward of zero bubble.
            trained = [p for p in self.model.parameters() if p.requires_grad]
            sum_over([_local(p.grad) for p in trained], self.replicas, self.device)
        self._sum_copies()
        if not found:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        return torch.stack([(losses_BT.sum() / count).double() for losses_BT, _ in found]).sum()

    @torch.no_grad()
    def forward(self, ids_BT: Tensor, targets_BT: Tensor, **rows: Tensor) -> Tensor | None:
        """losses_BT on the last stage, None elsewhere. Every process must call it."""
        rank, (batch, tokens) = dist.get_rank(self.group), ids_BT.shape
        shape = batch, tokens // self.stream_pieces, self.model.config.dim
        out: Any = ids_BT
        for stage in range(self.plan.num_stages):
            owner = self.plan.owner_of(stage)
            source = self.plan.owner_of(stage - 1) if stage else None
            if rank == source != owner:
                dist.send(out.contiguous(), group=self.group, group_dst=owner)
            if rank != owner:
                continue
            if source is not None and source != rank:
                out = torch.empty(shape, dtype=self.stream_dtype, device=self.device)
                dist.recv(out, group=self.group, group_src=source)
            out = self.parts[stage](out, targets_BT=targets_BT, **rows)
        for part in self.parts.values():
            reshard(part)
        return out[1] if self.is_last else None

    def _sum_copies(self) -> None:
        """Give both copies of a tied embedding the sum of their gradients, alike to the bit."""
        if not has_copies(self.model.config, self.plan):
            return
        first, last = self.plan.owner_of(0), self.plan.owner_of(self.plan.num_stages - 1)
        rank = dist.get_rank(self.group)
        end = self.model.embedding if rank == first else self.model.head
        if rank in (first, last) and not end.weight.requires_grad:
            return
        if first == last == rank:
            ends = self.model.embedding, self.model.head
            one, other = (_local(end.weight.grad) for end in ends)
            other.copy_(one.add_(other))
        elif rank in (first, last):
            mine = _local(end.weight.grad)
            theirs = torch.empty_like(mine)
            peer = last if rank == first else first
            sends = dist.P2POp(dist.isend, mine.contiguous(), group=self.group, group_peer=peer)
            receives = dist.P2POp(dist.irecv, theirs, group=self.group, group_peer=peer)
            for work in dist.batch_isend_irecv([sends, receives]):
                work.wait()
            # Both sides add the same two numbers, and the order of two changes no bit.
            mine.add_(theirs)

    def _schedule(self, num_micro_batches: int) -> Any:
        if num_micro_batches not in self._schedules:
            self.plan.check_micro_batches(num_micro_batches)
            stages = [
                PipelineStage(part, stage, self.plan.num_stages, self.device, group=self.group)
                for stage, part in sorted(self.parts.items())
            ]
            schedule_class: Any = pipelining.schedules.get_schedule_class(
                CLASSES[self.plan.schedule]
            )
            several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
            self._schedules[num_micro_batches] = schedule_class(
                stages if several else stages[0],
                num_micro_batches,
                loss_fn=self._share_of_loss,
                scale_grads=False,
            )
        return self._schedules[num_micro_batches]

    def _share_of_loss(self, out: tuple[Tensor, Tensor], handed_on_BT: Tensor) -> Tensor:
        learnt, losses_BT = out
        self._found.append((losses_BT.detach(), handed_on_BT))
        return learnt / self._count


def _local(grad: Tensor | None) -> Tensor:
    assert grad is not None, "every stage ran backward"
    return grad.to_local() if isinstance(grad, DTensor) else grad

"""Weights cut over data-parallel processes by FSDP2 (after Zhao et al., 2023): one unit per block,
the rest together.

Embedding, norm and head form the root unit, which keeps a tied weight together. FSDP averages
gradients by default; losses are divided by the global count of targets before backward, so here it
sums: a divide factor of one, with plain sums, because gloo has no pre-multiplied ones.

The stages of ZeRO (Rajbhandari et al. 2020, section 5) are when units are gathered and reduced.
Each process keeps float32 weights and moments of its shard, 12 / n bytes a weight with AdamW, and
for a step of g-byte gradients (`train.gradient_bits`):

| kind | weights gathered | gradients reduced | bytes of a weight besides |
|---|---|---|---|
| zero1 | once a step | once a step, whole until then | 2 + g |
| zero2 | once a step | in each micro batch | 2 + g / n |
| fsdp, ZeRO-3 | a unit at a time, twice in each micro batch | in each micro batch | g / n |

With train.dtype=fp32 the gathered copy has 4 bytes instead of 2.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from llm_core.compat import all_gather_single, dtensor_of, reduce_scatter_single
from llm_core.model.config import ComputeConfig
from llm_core.model.precision import HALF_DTYPES
from llm_core.model.transformer import Transformer


def shard_weights(
    model: Transformer,
    compute: ComputeConfig,
    mesh: DeviceMesh,
    rest: OffloadPolicy,
    stays_whole: bool,
    ffn_apart: bool = False,
    alone: Set[nn.Parameter] = frozenset(),
) -> None:
    """Cut the weights of a model (or of a pipeline's stage) over a mesh; of two axes the first
    replicates.

    compute: in whose dtype weights are gathered. rest: where they are in between. stays_whole: from
    forward to backward; else a block is gathered once more for its backward. ffn_apart: weights of
    feed-forwards are cut too, but whoever needs them gathers them. alone: weights that are left as
    they are.
    """
    # Inputs keep their dtype: rotary tables must stay float32, and activations take the dtype of
    # the weights anyway.
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if compute.dtype in HALF_DTYPES:
        half = HALF_DTYPES[compute.dtype]
        summed = half if compute.gradient_bits == 16 else torch.float32
        policy = MixedPrecisionPolicy(half, summed, cast_forward_inputs=False)
    # None: all but the root unit, which backward needs first.
    reshard_after_forward = False if stays_whole else None
    apart: list[nn.Module] = []
    if ffn_apart:
        # Their forward is never called, upon which FSDP would gather them.
        apart = [layer for block in model.own_blocks for layer in (block.ffn.into, block.ffn.down)]
    for module in (*apart, *model.own_blocks, model):
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=rest,
            reshard_after_forward=reshard_after_forward,
            ignored_params=set(alone),
        )
    shards = mesh.get_group(mesh.ndim - 1)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
            if dist.get_backend(shards) == "gloo":
                module.set_custom_reduce_scatter(ExchangeAndSum())


class RowShards:
    """How FSDP's processes share rows, for whoever gathers some of them himself
    (`llm_core.memory.tiling.Shards`)."""

    def __init__(self, group: dist.ProcessGroup, compute: ComputeConfig) -> None:
        self.number, self._group = group.size(), group
        self._half = HALF_DTYPES.get(compute.dtype)

    def gather(self, rows: Tensor) -> Tensor:
        own = rows.flatten(1).to(self._half or rows.dtype).contiguous()
        found = own.new_empty(self.number * len(own), own.shape[1])
        all_gather_single(found, own, group=self._group)
        return found

    def reduce(self, gradient: Tensor) -> Tensor:
        """In float32 or better, as FSDP's sums."""
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()
        own = wide.new_empty(len(wide) // self.number, *wide.shape[1:])
        if dist.get_backend(self._group) == "gloo":
            ExchangeAndSum()(own.view(-1), wide.view(-1), self._group, dist.ReduceOp.SUM)
        else:
            reduce_scatter_single(own, wide, group=self._group)
        return own

    def like(self, weight: Tensor, rows: Tensor) -> Tensor:
        assert isinstance(weight, DTensor)
        return dtensor_of(rows, weight.device_mesh, weight.placements, weight.shape)


class ExchangeAndSum:
    """A reduce-scatter that sends each process its pieces, which it adds up: (n - 1) / n of the
    input. That of gloo is an all-reduce, twice as much.

    As `torch.distributed.fsdp`'s ReduceScatter. Sums are taken in float32 or better and rounded
    once.
    """

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        assert op == dist.ReduceOp.SUM and not async_op, "as shard_weights asks for"
        pieces = torch.empty_like(input_tensor)
        dist.all_to_all_single(pieces, input_tensor, group=group)
        wide = torch.promote_types(pieces.dtype, torch.float32)
        output_tensor.copy_(pieces.view(group.size(), -1).sum(dim=0, dtype=wide))


def shorten_gradients(model: nn.Module, dtype: torch.dtype) -> None:
    """Have FSDP keep shards of gradients in a 16-bit dtype; it would give them that of the weights,
    block by block as they come."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad_dtype = None  # any
            weight.register_post_accumulate_grad_hook(lambda weight: _shorten(weight, dtype))


def _shorten(weight: Tensor, dtype: torch.dtype) -> None:
    assert isinstance(weight.grad, DTensor)
    weight.grad = weight.grad.to(dtype)


def reshard(model: nn.Module) -> None:
    """Shard again after a forward without backward, where FSDP keeps its root unit whole."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()

"""Weights cut over data-parallel processes by FSDP2 (after Zhao et al., 2023): one unit per block,
the rest together.

Embedding, norm and head form the root unit, which keeps a tied weight together. FSDP averages
gradients by default; losses are divided by the global count of targets before backward, so here it
sums: a divide factor of one, with plain sums, because gloo has no pre-multiplied ones.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from llm_core.model.precision import HALF_DTYPES
from llm_core.model.transformer import Transformer


def shard_weights(
    model: Transformer, dtype: str, mesh: DeviceMesh, rest: OffloadPolicy, stays_whole: bool
) -> None:
    """Cut the weights of a model (or of a pipeline's stage) over a mesh; of two axes the first
    replicates.

    dtype: `train.dtype`, in which weights are gathered. rest: where they are in between.
    stays_whole: from forward to backward; else a block is gathered once more for its backward.
    """
    # Inputs keep their dtype: rotary tables must stay float32, and activations take the dtype of
    # the weights anyway.
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if dtype in HALF_DTYPES:
        policy = MixedPrecisionPolicy(HALF_DTYPES[dtype], torch.float32, cast_forward_inputs=False)
    # None: all but the root unit, which backward needs first.
    reshard_after_forward = False if stays_whole else None
    for module in (*model.own_blocks, model):
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=rest,
            reshard_after_forward=reshard_after_forward,
        )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def reshard(model: nn.Module) -> None:
    """Shard again after a forward without backward, where FSDP keeps its root unit whole."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()

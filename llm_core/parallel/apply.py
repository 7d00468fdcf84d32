"""Put a layout around a model, in one visible order: build → shard → allocate → initial weights → replicate.

Every layout starts from the same weights and gives the gradient of one process: losses are divided by the global count
of targets before backward, so ranks only ever add gradients. Both DDP and FSDP average by default; here DDP gets a
communication hook that sums, FSDP a divide factor of one with plain sums (gloo has no pre-multiplied sum).
"""

# No postponed annotations here: DDP checks that its hook is annotated with the class itself.
import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from llm_core.loss import summed_loss
from llm_core.model.attend import prepare_backend
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer, global_name
from llm_core.parallel.context import Context
from llm_core.parallel.degrees import StagePlan
from llm_core.parallel.pipeline import Pipeline
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.stages import split_model
from llm_core.train_config import ParallelConfig, TrainConfig


@dataclass(frozen=True)
class Layout:
    """The model of this rank, and what it has besides a model where layers or tokens are elsewhere."""

    model: nn.Module
    pipeline: Pipeline | None = None
    context: Context | None = None
    optimizer_mesh: DeviceMesh | None = None
    """Processes that share the optimizer's state among them (ZeRO-1); None: each has that of its weights."""


def build_layout(config: ModelConfig, parallel: ParallelConfig, train: TrainConfig, ranks: Ranks) -> Layout:
    """The model of this rank with initial weights, laid out over processes and with its attention kernel."""
    pipeline, context = None, None
    if ranks.mesh is not None and parallel.pp > 1:
        pipeline = _build_pipeline(config, parallel, train, ranks, ranks.mesh)
        model: nn.Module = pipeline.model
    else:
        model = build_model(config, parallel, train.dtype, train.seed, ranks)
    if ranks.mesh is not None and parallel.cp > 1:
        context = Context(ranks.mesh.get_group("cp"), parallel.cp_kind, parallel.cp_balanced)
        context.apply(bare(model))
    backend = "sdpa" if train.attention == "auto" else train.attention
    for block in bare(model).blocks:
        if block is not None:
            block.attention.backend = prepare_backend(backend, ranks.device)
    return Layout(model, pipeline, context, _weight_mesh(parallel, ranks) if parallel.kind == "zero1" else None)


def _build_pipeline(
    config: ModelConfig, parallel: ParallelConfig, train: TrainConfig, ranks: Ranks, mesh: DeviceMesh
) -> Pipeline:
    plan = StagePlan(parallel.pp_schedule, parallel.pp, config.num_layers)
    model, parts = split_model(config, plan, mesh.get_local_rank("pp"))
    replicas = [mesh.get_group(axis) for axis in ("dp", "cp")]
    stream = torch.get_default_dtype()
    if parallel.shards_weights:
        data = _weight_mesh(parallel, ranks)
        for part in parts.values():
            # Whole between the micro batches of a step: gathered again for each, weights would cost more than they save.
            _shard(part, train.dtype, data, reshard_after_forward=False)
        replicas, stream = [], torch.bfloat16 if train.dtype == "bf16" else stream
    model.to_empty(device=ranks.device)
    init_weights(model, train.seed, _write)
    return Pipeline(plan, mesh.get_group("pp"), model, parts, summed_loss, ranks.device, stream, replicas)


def build_model(config: ModelConfig, parallel: ParallelConfig, dtype: str, seed: int, ranks: Ranks) -> nn.Module:
    """The model of this rank, with initial weights, ready to be called as one process would call it."""
    with torch.device("meta"):
        model = Transformer(config)
    if parallel.shards_weights:
        _shard(model, dtype, _weight_mesh(parallel, ranks), reshard_after_forward=False if parallel.kind == "zero2" else None)
    model.to_empty(device=ranks.device)
    if config.tied_embeddings:
        model.head.weight = model.embedding.weight
    init_weights(model, seed, _write)
    return _replicate(model, ranks) if parallel.kind in ("ddp", "zero1") else model


def last_micro_batch(model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
    """Around forward and backward of one micro batch: DDP adds up over ranks only once per step.

    FSDP adds up every time, which costs traffic and keeps gradients sharded, as memory is why one shards.
    """
    if isinstance(model, DistributedDataParallel) and not is_last:
        return model.no_sync()
    return contextlib.nullcontext()


def reshard(model: nn.Module) -> None:
    """After a forward without backward: FSDP would keep the root unit whole, and its parameters are not the optimizer's then."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def bare(model: nn.Module) -> Transformer:
    """The transformer inside; its parameter names do not depend on the layout."""
    return cast(Transformer, model.module if isinstance(model, DistributedDataParallel) else model)


def write_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Fill the model from whole weights on the CPU, by global names; each rank has them all and takes its piece."""
    with torch.no_grad():
        for name, parameter in bare(model).named_parameters():
            _write(parameter, weights[global_name(bare(model).config, name)])


def whole_weights(model: nn.Module, ranks: Ranks, pipeline: Pipeline | None = None) -> dict[str, Tensor]:
    """All weights unsharded on the CPU of the first rank; empty elsewhere. Every rank must call it."""
    weights = {}
    if pipeline is not None:
        weights = pipeline.whole_weights()
        return weights if ranks.is_first else {}
    for name, value in bare(model).state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if ranks.is_first:
            weights[name] = whole.detach().cpu()
    return weights


def _weight_mesh(parallel: ParallelConfig, ranks: Ranks) -> DeviceMesh:
    """The processes that hold the same layers: the axis dp_shard over which they share, under hsdp after dp_replicate."""
    replicas = ranks.world // parallel.pp
    share = parallel.dp_shard or replicas
    axes = ("pp", "dp_replicate", "dp_shard")
    mesh = init_device_mesh(ranks.device.type, (parallel.pp, replicas // share, share), mesh_dim_names=axes)
    return mesh[axes[1:]] if parallel.kind == "hsdp" else mesh["dp_shard"]


def _shard(model: Transformer, dtype: str, mesh: DeviceMesh, reshard_after_forward: bool | None = None) -> None:
    """FSDP2: one unit per block; embedding, norm and head form the root unit, which keeps a tied weight together."""
    # Inputs keep their dtype: rotary tables must stay float32, and activations take the dtype of the weights anyway.
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if dtype == "bf16":
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for module in (*(block for block in model.blocks if block is not None), model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def _replicate(model: Transformer, ranks: Ranks) -> DistributedDataParallel:
    # Equal seeds gave equal weights, so nothing has to be broadcast.
    replica = DistributedDataParallel(model, init_sync=False, gradient_as_bucket_view=True)
    replica.register_comm_hook(None, _sum_gradients)
    return replica


def _sum_gradients(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.SUM, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _write(parameter: nn.Parameter, value: Tensor) -> None:
    if isinstance(parameter, DTensor):
        # Each rank has drawn the whole value and takes its piece; nothing is sent.
        value = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)

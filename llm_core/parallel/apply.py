"""Puts a layout around a model, in one visible order.

Build → cut layers → freeze → take losses and feed-forwards in pieces → recompute → compile → cut
weights → allocate → slice rows → choose kernels → replicate → fill: each step wraps what those
before have made, and weights exist only once it is known which part of them is here.

Every layout starts from the same weights and gives the gradient of one process: losses are divided
by the global count of targets before backward, so ranks only ever add gradients. DDP averages by
default; here it gets a communication hook that sums, as `llm_core.parallel.fsdp` has FSDP do.
"""

# No postponed annotations here: DDP checks that its hook is annotated with the class itself.
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy
from torch.nn.parallel import DistributedDataParallel

from llm_core.compat import NO_BUFFER_SYNC
from llm_core.config import ConfigError
from llm_core.kernels import flash4
from llm_core.memory.chunked_loss import head_loss
from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from llm_core.memory.recompute import apply_recompute
from llm_core.memory.resting import RestingWeights
from llm_core.memory.tiling import Exchange, apply_tiling
from llm_core.model.attend import prepare_backend
from llm_core.model.config import ComputeConfig, ModelConfig
from llm_core.model.experts.feed_forward import SparseFeedForward
from llm_core.model.experts.router import as_it_is
from llm_core.model.float8 import apply_float8
from llm_core.model.loss import CrossEntropy, each_head_loss, token_losses
from llm_core.model.operations import apply_kernels, check_kernels
from llm_core.model.precision import HALF_DTYPES, stream_dtype
from llm_core.model.transformer import Transformer
from llm_core.parallel.compression.reduction import Reduction, make_reduction
from llm_core.parallel.compression.wire import Wire
from llm_core.parallel.config import ParallelConfig
from llm_core.parallel.degrees import StagePlan, key_copies
from llm_core.parallel.experts.exchange import share_out_experts
from llm_core.parallel.frozen import freeze
from llm_core.parallel.fsdp import RowShards, shard_weights, shorten_gradients
from llm_core.parallel.grid.shards import GridShards
from llm_core.parallel.layout import Layout
from llm_core.parallel.overlap import Overlap, check_access
from llm_core.parallel.pipelining.pipeline import Pipeline
from llm_core.parallel.pipelining.stages import split_model
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.sequence.context import Context
from llm_core.parallel.servers.shares import Servers
from llm_core.parallel.tensor import TensorShards
from llm_core.parallel.weights import initialize
from llm_core.private_folder import keep_compiled_code_private


def build_layout(
    config: ModelConfig,
    parallel: ParallelConfig,
    compute: ComputeConfig,
    ranks: Ranks,
    memory: MemoryConfig = NO_SAVINGS,
    fill: bool = True,
    trains: Callable[[str], bool] | None = None,
    sums_losses: bool = True,
    noise_scale: float = 0.0,
    scratch: Path | None = None,
) -> Layout:
    """This rank's model with attention kernel, laid out over processes.

    fill: with initial weights; else they are whatever was in memory, for a caller that reads them.
    trains: whether the weight of a global name is trained; None: all are. sums_losses: false for a
    model that gives what is learnt of each token. noise_scale: of noise on embeddings. scratch:
    folder for weights that rest on a disk. Raises ConfigError where a layout cannot do what is
    asked for.
    """
    check_kernels(compute.kernels, ranks.device, config, compute.dtype)
    plan = parallel.plan(config)
    model, parts = _build(config, plan, ranks)
    tensor = _tensor_shards(config, parallel, ranks) if parallel.tp > 1 else None
    if tensor is not None:
        _share_layers(tensor, model, parts)
    if trains is not None:
        freeze(model, plan, trains)
    _set_stream_and_loss(parts, tensor, compute, memory, sums_losses)
    for part in parts.values():
        part.noise_scale = noise_scale
    shards = None
    if memory.ffn_gather == "tiles":
        assert ranks.weights is not None
        shards = RowShards(ranks.weights.get_group("dp_shard"), compute)
    exchanges: tuple[Exchange, Exchange] = (as_it_is, as_it_is)
    if isinstance(tensor, TensorShards):
        exchanges = (tensor.enter, tensor.leave)
    apply_tiling(model, memory, *exchanges, shards)
    if compute.float8:
        apply_float8(model, ranks.device, compute.kernels)
    apply_recompute(model, memory)
    if compute.compile:
        _compile_blocks(model, parallel, memory)
    if parallel.shards_weights:
        _cut_weights(model, parts, parallel, compute, ranks, memory)
    model.to_empty(device=ranks.device if memory.weights_in == "device" else "cpu")
    # `to_empty` makes memory for each name, which unties them.
    if config.tied_embeddings and parallel.pp == 1:
        model.head.weight = model.embedding.weight
    resting = None
    if memory.weights_in == "disk":
        resting = _rest_on_disk(model, compute, ranks, scratch)
    if compute.gradient_bits == 16:
        shorten_gradients(model, HALF_DTYPES[compute.dtype])
    context = None
    if parallel.cp > 1:
        context = Context(_group(ranks, "cp"), parallel.cp_kind, parallel.cp_balanced)
        context.apply(model)
    _choose_kernels(model, parallel, compute, ranks)
    laid_out: nn.Module = model
    pipeline = reduction = servers = None
    if plan is not None:
        pipeline = _pipeline(model, parts, plan, parallel, compute.dtype, ranks)
    elif parallel.compress != "none":
        reduction = _reduction(model, parallel, ranks)
    elif parallel.kind == "ddp":
        laid_out = _replicate(model, ranks)
    elif parallel.kind == "server" and ranks.weights is not None:
        servers = Servers(model, ranks.weights.get_group("dp_shard"), parallel.servers)
    copies = None
    if parallel.ep > 1 and parallel.kind == "hsdp":
        assert ranks.weights is not None
        copies = ranks.weights.get_group("dp_replicate")
    mesh, kind = ranks.weights, parallel.kind
    layout = Layout(
        laid_out, pipeline, context, tensor, mesh, kind, reduction, resting, copies, servers
    )
    if reduction is not None:
        found = reduction.counts.items()
        layout.counts.update({f"compression.{name}": count for name, count in found})
    if fill:
        initialize(layout, compute.seed)
    return layout


def _build(
    config: ModelConfig, plan: StagePlan | None, ranks: Ranks
) -> tuple[Transformer, dict[int, Transformer]]:
    """(what this process holds, its stages by number), on the meta device."""
    if plan is not None:
        assert ranks.mesh is not None
        return split_model(config, plan, ranks.mesh.get_local_rank("pp"))
    with torch.device("meta"):
        model = Transformer(config)
    return model, {0: model}


def _tensor_shards(
    config: ModelConfig, parallel: ParallelConfig, ranks: Ranks
) -> TensorShards | GridShards:
    if parallel.grid is not None:
        assert ranks.weights is not None
        axes = ranks.weights[("tp", "tp_row", "tp_depth")]
        return GridShards(_group(ranks, "tp"), axes, parallel.grid)
    group, copies = _group(ranks, "tp"), key_copies(config, parallel.tp)
    check_access(parallel.tp_overlap, group, ranks.device)
    overlap = Overlap(group, parallel.tp_overlap) if parallel.tp_overlap != "none" else None
    of_head = None
    if copies > 1:
        first = dist.get_rank(group) // copies * copies
        members = dist.get_process_group_ranks(group)[first : first + copies]
        # Known to its members alone: of thousands of groups each process is in one.
        of_head = dist.new_group(members, use_local_synchronization=True)
    return TensorShards(group, parallel.sequence_parallel, overlap, of_head)


def _share_layers(
    tensor: TensorShards | GridShards, model: Transformer, parts: dict[int, Transformer]
) -> None:
    if isinstance(tensor, GridShards):
        tensor.apply(model)
    else:
        tensor.apply(model, parts.values())


def _set_stream_and_loss(
    parts: dict[int, Transformer],
    tensor: TensorShards | GridShards | None,
    compute: ComputeConfig,
    memory: MemoryConfig,
    sums_losses: bool,
) -> None:
    """Say in which numbers each stage's residual stream goes, and how its head takes the loss."""
    loss: CrossEntropy = partial(token_losses, z_loss=compute.z_loss)
    if tensor is not None:
        loss = tensor.loss(next(iter(parts.values())).config.vocab_size, compute.z_loss)
    elif compute.compile:
        # Float32 logits then never leave the kernel.
        loss = partial(torch.compile(token_losses, dynamic=False), z_loss=compute.z_loss)
    for part in parts.values():
        part.head_loss = partial(each_head_loss, cross_entropy=loss)
        if sums_losses:
            part.head_loss = head_loss(memory, loss)
        part.stream_dtype = stream_dtype(compute.dtype)
        if isinstance(tensor, TensorShards):
            part.to_head, part.stream_pieces = tensor.enter, tensor.size if tensor.sequence else 1


def _compile_blocks(model: Transformer, parallel: ParallelConfig, memory: MemoryConfig) -> None:
    keep_compiled_code_private()
    # Exchanges of other processes' tokens or parts break the graph of a block, and so do tiles and
    # the sorting of tokens by expert.
    is_dense = model.config.experts is None
    whole_graph = is_dense and parallel.tp * parallel.cp * memory.ffn_tiles == 1
    for block in model.own_blocks:
        if not is_dense:
            sparse = block.ffn
            assert isinstance(sparse, SparseFeedForward)
            sparse.compile_passes()
            sparse.forward = torch.compiler.disable(sparse.forward)  # type: ignore[method-assign]
        block.compile(fullgraph=whole_graph, dynamic=False)


def _cut_weights(
    model: Transformer,
    parts: dict[int, Transformer],
    parallel: ParallelConfig,
    compute: ComputeConfig,
    ranks: Ranks,
    memory: MemoryConfig,
) -> None:
    assert ranks.weights is not None
    axes = ("dp_replicate", "dp_shard") if parallel.kind == "hsdp" else "dp_shard"
    rest = OffloadPolicy()
    if memory.weights_in != "device":
        # What is mapped from a disk cannot be pinned.
        pins = memory.weights_in == "host" and ranks.device.type == "cuda"
        rest = CPUOffloadPolicy(pin_memory=pins)
    mesh, gathers_tiles = ranks.weights[axes], memory.ffn_gather == "tiles"
    alone = share_out_experts(model, mesh) if parallel.ep > 1 else set()
    for part in parts.values():
        shard_weights(part, compute, mesh, rest, parallel.gathers_once, gathers_tiles, alone)


def _rest_on_disk(
    model: Transformer, compute: ComputeConfig, ranks: Ranks, scratch: Path | None
) -> RestingWeights:
    if scratch is None:
        raise ConfigError(
            "optim.state_folder (null) must name a folder for memory.weights_in=disk: there is no"
            " work directory"
        )
    half, units = HALF_DTYPES.get(compute.dtype), (model, *model.own_blocks)
    assert all(isinstance(unit, FSDPModule) for unit in units)
    on_gpu = ranks.device.type == "cuda"
    return RestingWeights(cast(Sequence[FSDPModule], units), scratch, half, on_gpu)


def _choose_kernels(
    model: Transformer, parallel: ParallelConfig, compute: ComputeConfig, ranks: Ranks
) -> None:
    config = model.config
    kv_heads = max(1, config.num_kv_heads // parallel.columns)
    heads = config.num_heads // parallel.columns, kv_heads, config.head_dim
    name = "sdpa" if compute.attention == "auto" else compute.attention
    backend = prepare_backend(name, ranks.device, heads)
    # Other context ranks would be sent the copies.
    own_keys = (
        backend == "fa4" and parallel.cp == 1 and flash4.adds_up_keys_slowly(ranks.device, heads)
    )
    apply_kernels(model.own_blocks, compute.kernels, own_keys)
    for block in model.own_blocks:
        block.attention.backend = backend


def _pipeline(
    model: Transformer,
    parts: dict[int, Transformer],
    plan: StagePlan,
    parallel: ParallelConfig,
    dtype: str,
    ranks: Ranks,
) -> Pipeline:
    # Whoever holds the same layers and parts of them, whether it reads other sequences or other
    # tokens of the same.
    replicas = None
    if not parallel.shards_weights and ranks.weights is not None and ranks.weights.size(2) > 1:
        replicas = ranks.weights.get_group("dp_shard")
    group, pieces = _group(ranks, "pp"), parallel.tp if parallel.sequence_parallel else 1
    stream = stream_dtype(dtype)
    return Pipeline(plan, group, model, dict(parts), ranks.device, stream, pieces, replicas)


def _replicate(model: Transformer, ranks: Ranks) -> DistributedDataParallel:
    assert ranks.weights is not None
    group = ranks.weights.get_group("dp_shard")
    # Equal seeds gave equal weights, so nothing has to be broadcast.
    replica = DistributedDataParallel(
        model,
        process_group=group,
        init_sync=False,
        **NO_BUFFER_SYNC,
        gradient_as_bucket_view=True,
    )
    replica.register_comm_hook(group, _sum_gradients)
    return replica


def _reduction(model: Transformer, parallel: ParallelConfig, ranks: Ranks) -> Reduction:
    assert ranks.weights is not None
    wire = Wire(ranks.weights.get_group("dp_shard"))
    settings = parallel.compress_warmup_steps, parallel.compress_rank
    return make_reduction(parallel.compress, wire, model, *settings)


def _sum_gradients(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.SUM, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _group(ranks: Ranks, axis: str) -> dist.ProcessGroup:
    assert ranks.mesh is not None, "a layout of several axes has a mesh"
    return ranks.mesh.get_group(axis)


def last_micro_batch(layout: Layout, is_last: bool) -> AbstractContextManager[None]:
    """Around forward and backward of one micro batch: ZeRO-1 and 2 gather weights once per step;
    DDP, ZeRO-1, and HSDP between its groups, add up over ranks once.

    Others who share weights add up every time, which costs traffic and keeps gradients sharded, as
    memory is why one shards.
    """
    model = layout.model
    if isinstance(model, DistributedDataParallel) and not is_last:
        return model.no_sync()
    if isinstance(model, FSDPModule) and layout.kind in ("zero1", "zero2"):
        model.set_reshard_after_backward(is_last)
        model.set_requires_gradient_sync(is_last or layout.kind == "zero2")
    elif isinstance(model, FSDPModule):
        # What waits for the other groups waits on the device, also of weights that rest in main
        # memory to leave it room.
        waits_where_it_rests = next(model.parameters()).device.type == layout.device.type
        model.set_requires_all_reduce(is_last or not waits_where_it_rests)
    return contextlib.nullcontext()

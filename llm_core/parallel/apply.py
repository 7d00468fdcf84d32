"""Put a layout around a model, in one visible order.

Build → cut layers → take losses and feed-forwards in pieces → recompute → compile → cut weights →
allocate → fill → replicate: each step wraps what those before have made, and weights exist only
once it is known which part of them is here.

Every layout starts from the same weights and gives the gradient of one process: losses are divided
by the global count of targets before backward, so ranks only ever add gradients. DDP averages by
default; here it gets a communication hook that sums, as `llm_core.parallel.fsdp` has FSDP do.
"""

# No postponed annotations here: DDP checks that its hook is annotated with the class itself.
import contextlib
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy
from torch.nn.parallel import DistributedDataParallel

from llm_core.kernels import flash4
from llm_core.memory.chunked_loss import head_loss
from llm_core.memory.config import NO_SAVINGS, MemoryConfig
from llm_core.memory.recompute import apply_recompute
from llm_core.memory.tiling import apply_tiling
from llm_core.model.attend import prepare_backend
from llm_core.model.config import ModelConfig
from llm_core.model.float8 import apply_float8
from llm_core.model.loss import CrossEntropy, token_losses
from llm_core.model.operations import apply_kernels, check_kernels
from llm_core.model.precision import stream_dtype
from llm_core.model.transformer import Transformer
from llm_core.parallel.fsdp import shard_weights
from llm_core.parallel.layout import Layout
from llm_core.parallel.overlap import Overlap, check_access
from llm_core.parallel.pipelining.pipeline import Pipeline
from llm_core.parallel.pipelining.stages import split_model
from llm_core.parallel.ranks import Ranks
from llm_core.parallel.sequence.context import Context
from llm_core.parallel.tensor import TensorShards
from llm_core.parallel.weights import initialize
from llm_core.private_folder import keep_compiled_code_private
from llm_core.training.config import ParallelConfig, TrainConfig


def build_layout(
    config: ModelConfig,
    parallel: ParallelConfig,
    train: TrainConfig,
    ranks: Ranks,
    memory: MemoryConfig = NO_SAVINGS,
) -> Layout:
    """The model of this rank with initial weights, laid out over processes and with its attention
    kernel."""
    check_kernels(train.kernels, ranks.device, config, train.dtype)
    tensor = _tensor_shards(parallel, ranks) if parallel.tp > 1 else None
    mesh = ranks.weights
    plan = parallel.plan(config.num_layers)
    if plan is not None:
        assert ranks.mesh is not None
        model, parts = split_model(config, plan, ranks.mesh.get_local_rank("pp"))
    else:
        with torch.device("meta"):
            model = Transformer(config)
        parts = {0: model}

    if tensor is not None:
        tensor.apply(model)
    loss: CrossEntropy = tensor.loss(config.vocab_size) if tensor else token_losses
    if train.compile:
        keep_compiled_code_private()
    if train.compile and tensor is None:
        loss = torch.compile(loss, dynamic=False)  # float32 logits then never leave the kernel
    for part in parts.values():
        part.head_loss, part.stream_dtype = head_loss(memory, loss), stream_dtype(train.dtype)
        if tensor is not None:
            part.to_head, part.stream_pieces = tensor.enter, tensor.size if tensor.sequence else 1
    apply_tiling(model, memory, *((tensor.enter, tensor.leave) if tensor else ()))
    if train.float8:
        apply_float8(model, ranks.device, train.kernels)
    apply_recompute(model, memory)
    if train.compile:
        for block in model.blocks:
            if block is not None:
                # Exchanges of other processes' tokens or parts break the graph of a block, and so
                # do tiles.
                block.compile(
                    fullgraph=parallel.tp * parallel.cp * memory.ffn_tiles == 1, dynamic=False
                )
    if parallel.shards_weights:
        assert mesh is not None
        # Whole between the micro batches of a pipeline's step: gathered again for each, weights
        # would cost more than they save.
        stays_whole = parallel.kind == "zero2" or parallel.pp > 1
        rest = (
            CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda")
            if memory.weights_in == "host"
            else OffloadPolicy()
        )
        for part in parts.values():
            shard_weights(part, train.dtype, mesh[_data_axes(parallel)], rest, stays_whole)

    model.to_empty(device="cpu" if memory.weights_in == "host" else ranks.device)
    if config.tied_embeddings and parallel.pp == 1:
        model.head.weight = model.embedding.weight
    initialize(model, train.seed, tensor)

    context = None
    if parallel.cp > 1:
        context = Context(_group(ranks, "cp"), parallel.cp_kind, parallel.cp_balanced)
        context.apply(model)
    backend, blocks = (
        "sdpa" if train.attention == "auto" else train.attention,
        [b for b in model.blocks if b is not None],
    )
    heads = config.num_heads // parallel.tp, config.num_kv_heads // parallel.tp, config.head_dim
    ready = prepare_backend(backend, ranks.device, heads)
    # Other context ranks would be sent the copies.
    own_keys = (
        backend == "fa4" and context is None and flash4.adds_up_keys_slowly(ranks.device, heads)
    )
    apply_kernels(blocks, train.kernels, own_keys)
    for block in blocks:
        block.attention.backend = ready
    pipeline = None
    if plan is not None:
        # Whoever holds the same layers and parts of them, whether it reads other sequences or other
        # tokens of the same.
        replicas = (
            None
            if parallel.shards_weights or mesh is None or mesh.size(2) == 1
            else mesh.get_group("dp_shard")
        )
        pieces = parallel.tp if parallel.sequence_parallel else 1
        stream = stream_dtype(train.dtype)
        pipeline = Pipeline(
            plan, _group(ranks, "pp"), model, dict(parts), ranks.device, stream, pieces, replicas
        )
    elif parallel.kind in ("ddp", "zero1"):
        assert mesh is not None
        return Layout(
            _replicate(model, mesh.get_group("dp_shard")),
            None,
            context,
            tensor,
            mesh,
            parallel.kind == "zero1",
        )
    return Layout(model, pipeline, context, tensor, mesh, parallel.kind == "zero1")


def last_micro_batch(layout: Layout, is_last: bool) -> AbstractContextManager[None]:
    """Around forward and backward of one micro batch: DDP, and HSDP between its groups, add up over
    ranks only once per step.

    Those who share weights add up every time, which costs traffic and keeps gradients sharded, as
    memory is why one shards.
    """
    model = layout.model
    if isinstance(model, DistributedDataParallel) and not is_last:
        return model.no_sync()
    if isinstance(model, FSDPModule):
        # What waits for the other groups waits on the device, also of weights that rest in main
        # memory to leave it room.
        waits_where_it_rests = next(model.parameters()).device.type == layout.device.type
        model.set_requires_all_reduce(is_last or not waits_where_it_rests)
    return contextlib.nullcontext()


def _group(ranks: Ranks, axis: str) -> dist.ProcessGroup:
    assert ranks.mesh is not None, "a layout of several axes has a mesh"
    return ranks.mesh.get_group(axis)


def _tensor_shards(parallel: ParallelConfig, ranks: Ranks) -> TensorShards:
    group = _group(ranks, "tp")
    check_access(parallel.tp_overlap, group, ranks.device)
    overlap = Overlap(group, parallel.tp_overlap) if parallel.tp_overlap != "none" else None
    return TensorShards(group, parallel.sequence_parallel, overlap)


def _data_axes(parallel: ParallelConfig) -> str | tuple[str, ...]:
    return ("dp_replicate", "dp_shard") if parallel.kind == "hsdp" else "dp_shard"


def _replicate(model: Transformer, group: dist.ProcessGroup) -> DistributedDataParallel:
    # Equal seeds gave equal weights, so nothing has to be broadcast.
    replica = DistributedDataParallel(
        model, process_group=group, init_sync=False, gradient_as_bucket_view=True
    )
    replica.register_comm_hook(group, _sum_gradients)
    return replica


def _sum_gradients(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.SUM, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])

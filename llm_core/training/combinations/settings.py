"""Refuses settings of a run that do not go together: kernels, number formats and savings of memory
against model, layout and each other. Standard library only."""

from __future__ import annotations

import math

from llm_core.config import ConfigError
from llm_core.memory.config import MemoryConfig
from llm_core.model.adapter import AdaptedModelConfig
from llm_core.model.config import ONE_PASS_KERNELS, ModelConfig
from llm_core.optim.config import OptimConfig, OptimizerKind
from llm_core.parallel.config import ParallelConfig
from llm_core.training.combinations.adapter import check_adapter
from llm_core.training.combinations.experts import check_experts
from llm_core.training.combinations.grid import check_grid_settings
from llm_core.training.combinations.preference import check_preference
from llm_core.training.combinations.servers import check_servers
from llm_core.training.combinations.tiles import check_gathered_tiles
from llm_core.training.config import TrainConfig


def check_settings(
    model: ModelConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    memory: MemoryConfig,
    optimizer: OptimizerKind,
) -> None:
    """Whether what is asked for beside the degrees goes with them. Raises ConfigError."""
    if train.compile and parallel.splits_backward:
        raise ConfigError(
            "train.compile (true) makes one pass of a block's backward,"
            f" pp_schedule={parallel.pp_schedule} takes it apart; use the schedule 1f1b or"
            " interleaved, or train.compile=false"
        )
    if train.kernels in ONE_PASS_KERNELS and parallel.splits_backward:
        # torch 2.11 adds up the gradients of both results of a sum and its norm there, and hands
        # them on as that of the sum.
        raise ConfigError(
            f"train.kernels ({train.kernels}) take a sum and its norm backward at once,"
            f" pp_schedule={parallel.pp_schedule} takes them apart; use the schedule 1f1b or"
            " interleaved, or train.kernels=torch"
        )
    if optimizer == "lamb" and (parallel.shards_weights or parallel.tp > 1):
        raise ConfigError(
            "optim.kind (lamb) takes norms of whole weights, parallel.kind is"
            f" {parallel.kind} with tp {parallel.tp}; set parallel=ddp with parallel.tp=1, or"
            " optim=adamw"
        )
    if parallel.tp_kind != "1d":
        check_grid_settings(model, train, parallel, memory, optimizer)
    check_gradients(train, parallel, memory)
    check_attention(model, train, parallel)
    if train.kernels in ONE_PASS_KERNELS and model.ffn != "swiglu":
        raise ConfigError(
            f"train.kernels ({train.kernels}) compute SwiGLU, model.ffn is {model.ffn}; set"
            " train.kernels=torch"
        )
    check_quack(model, train, parallel, memory)
    check_memory(memory, model, parallel, optimizer)
    if memory.weights_in == "disk" and (train.ema or isinstance(model, AdaptedModelConfig)):
        what = f"train.ema is {train.ema}" if train.ema else "adapter.kind is not none"
        raise ConfigError(
            f"memory.weights_in (disk) reads weights for one update rule over all of them, {what};"
            " set memory.weights_in=host"
        )
    if memory.ffn_gather == "tiles":
        check_gathered_tiles(model, train, parallel, memory)
    check_float8(model, train, parallel, memory)
    if model.experts is not None:
        check_experts(model, train, parallel, memory, optimizer)
    if train.learns_pairs:
        check_preference(model, train, parallel, memory)
    if isinstance(model, AdaptedModelConfig):
        check_adapter(model, train, parallel, memory, optimizer)


def check_compression(optim: OptimConfig, train: TrainConfig, parallel: ParallelConfig) -> None:
    """Whether gradients can be summed in fewer bytes or by servers, or runs meet, where that is
    asked for. Raises ConfigError."""
    check_servers(optim, train, parallel)
    outer = parallel.outer
    if outer.kind != "none":
        if train.num_steps % outer.steps:
            raise ConfigError(
                f"train.num_steps ({train.num_steps}) must be a multiple of parallel.outer.steps"
                f" ({outer.steps}), so that all members end with the same weights; try"
                f" train.num_steps={-(-train.num_steps // outer.steps) * outer.steps}"
            )
        if train.ema or optim.guard.rollback_skips:
            raise ConfigError(
                f"parallel.outer.kind ({outer.kind}) has members that keep averages and go back"
                f" alone, train.ema is {train.ema} and optim.guard.rollback_skips"
                f" {optim.guard.rollback_skips}; set both 0"
            )
    if parallel.compress == "none":
        return
    if train.dtype == "fp16":
        raise ConfigError(
            f"parallel.compress ({parallel.compress}) carries losses from step to step, and"
            " train.dtype=fp16 scales each step in another way; set train.dtype=bf16"
        )
    if parallel.compress != "onebit":
        return
    if optim.kind not in ("adamw", "lamb") or optim.state_dtype != "fp32":
        raise ConfigError(
            "parallel.compress (onebit) is 1-bit Adam or 1-bit LAMB with state in float32,"
            f" optim.kind is {optim.kind} with state_dtype {optim.state_dtype}; set optim=adamw or"
            " optim=lamb and optim.state_dtype=fp32, or parallel.compress=int8"
        )
    if optim.state_in != "device":
        raise ConfigError(
            "parallel.compress (onebit) exchanges momentum, which optim.state_in"
            f" ({optim.state_in}) keeps elsewhere; set optim.state_in=device"
        )
    # By then the zeros that it began with weigh exp(-3).
    least = math.ceil(3 / (1 - optim.beta2) - 1e-9)
    if parallel.compress_warmup_steps < least:
        raise ConfigError(
            f"parallel.compress_warmup_steps ({parallel.compress_warmup_steps}) must be at least"
            f" {least}, 3 / (1 - optim.beta2), since onebit then freezes the second moment; set it"
            " to a tenth of the steps or more"
        )


def check_places(optim: OptimConfig, memory: MemoryConfig) -> None:
    """Whether weights and moments rest in places that go together. Raises ConfigError."""
    if memory.weights_in == "disk" and optim.state_in != "disk":
        raise ConfigError(
            "memory.weights_in (disk) brings weights by with their moments, optim.state_in is"
            f" {optim.state_in}; set optim.state_in=disk, or memory.weights_in=host"
        )


def check_gradients(train: TrainConfig, parallel: ParallelConfig, memory: MemoryConfig) -> None:
    """Raises ConfigError where gradients cannot be kept in 16 bits."""
    if train.gradient_bits == 32:
        return
    if train.dtype == "fp32":
        raise ConfigError(
            "train.gradient_bits (16) keeps gradients in train.dtype, which is fp32; set"
            " train.dtype=bf16, or train.gradient_bits=32"
        )
    if not parallel.shards_weights:
        raise ConfigError(
            "train.gradient_bits (16) is for sharded weights, parallel.kind is"
            f" {parallel.kind}; set parallel=zero1, zero2 or fsdp, or train.gradient_bits=32"
        )
    if memory.weights_in != "device":
        raise ConfigError(
            "train.gradient_bits (16) shortens gradients on the device,"
            f" memory.weights_in={memory.weights_in} moves them off it; set train.gradient_bits=32"
        )


def check_attention(model: ModelConfig, train: TrainConfig, parallel: ParallelConfig) -> None:
    """Raises ConfigError where the attention kernel does not take this run's numbers and masks."""
    kernel, causal_only = train.attention, ("cudnn", "flash", "fa3", "fa4")
    if kernel in (*causal_only, "varlen") and train.dtype == "fp32":
        raise ConfigError(
            f"train.attention ({kernel}) takes 16-bit numbers, train.dtype is fp32; set"
            " train.dtype=bf16"
        )
    if kernel in causal_only and train.data.mask_documents:
        raise ConfigError(
            f"train.attention ({kernel}) cannot keep documents apart (mask_documents is true); use"
            " varlen or flex"
        )
    if kernel in (*causal_only, "varlen") and model.attention:
        raise ConfigError(
            f"train.attention ({kernel}) takes whole rows or a window, model.attention names"
            " patterns; use auto, flex or sdpa"
        )
    if kernel in (*causal_only, "varlen") and parallel.cp > 1 and parallel.cp_kind == "all_gather":
        raise ConfigError(
            f"train.attention ({kernel}) attends whole rows only; with cp={parallel.cp} use flex,"
            " or cp_kind=ulysses"
        )
    if (
        kernel not in ("auto", "sdpa", "reference")
        and parallel.cp > 1
        and parallel.cp_kind == "ring"
    ):
        others = "all_gather or cp_kind=ulysses" if kernel == "flex" else "ulysses"
        raise ConfigError(
            f"train.attention ({kernel}) does not give the parts that a ring adds up; use auto,"
            f" sdpa or reference, or cp_kind={others}"
        )


def check_quack(
    model: ModelConfig, train: TrainConfig, parallel: ParallelConfig, memory: MemoryConfig
) -> None:
    """Raises ConfigError where the package is asked for and does not multiply what this run has."""
    if train.kernels != "quack":
        return
    if train.dtype == "fp32":
        raise ConfigError(
            "train.kernels (quack) multiply 16-bit numbers, train.dtype is fp32; set"
            " train.dtype=bf16"
        )
    values = (
        ("parallel.tp", parallel.tp, 1),
        ("memory.ffn_tiles", memory.ffn_tiles, 1),
        ("model.ffn_bias", model.ffn_bias, False),
        ("train.float8", train.float8, False),
    )
    for name, value, stands in values:
        if value != stands:
            raise ConfigError(
                "train.kernels (quack) multiply whole feed-forwards in 16 bits, without biases;"
                f" {name} is {str(value).lower()}; set train.kernels=triton"
            )
    for name, width in (("model.dim", model.dim), ("model.ffn_dim", model.ffn_dim)):
        if width % 8:
            raise ConfigError(
                f"train.kernels (quack) need multiples of 8, {name} is {width}; set"
                " train.kernels=triton"
            )


def check_memory(
    memory: MemoryConfig,
    model: ModelConfig,
    parallel: ParallelConfig,
    optimizer: OptimizerKind = "adamw",
) -> None:
    """Rules that hold between groups. Raises ConfigError."""
    most = model.ffn_blocks // parallel.tp
    if memory.ffn_tiles > max(1, most):
        raise ConfigError(
            f"memory.ffn_tiles ({memory.ffn_tiles}) must be at most {max(1, most)}: ffn_dim"
            f" ({model.ffn_dim}) has {model.ffn_blocks} blocks of channels, shared by {parallel.tp}"
            " tensor ranks; lower it"
        )
    where = memory.weights_in
    if where != "device" and (not parallel.shards_weights or parallel.pp > 1):
        layout = f"kind is {parallel.kind}, pp {parallel.pp}"
        raise ConfigError(
            f"memory.weights_in ({where}) needs parallel.kind=zero1, zero2, fsdp or hsdp without a"
            f" pipeline, {layout}; set parallel=fsdp, with parallel.num_processes=1 on one GPU, or"
            " use optim.state_in=host"
        )
    if where != "device" and optimizer not in ("adamw", "lion"):
        raise ConfigError(
            f"memory.weights_in ({where}) serves adamw and lion: optim.kind={optimizer} exchanges"
            " parts of weights among processes, which meet through GPUs; use optim=adamw or lion"
        )
    if parallel.splits_backward and memory.recompute == "selective":
        raise ConfigError(
            "memory.recompute (selective) keeps results for one backward pass, and"
            f" pp_schedule={parallel.pp_schedule} takes two through each block; use"
            " memory.recompute=full or every, or the schedule interleaved"
        )


def check_float8(
    model: ModelConfig, train: TrainConfig, parallel: ParallelConfig, memory: MemoryConfig
) -> None:
    """Whether products can be taken in 8 bits, where they are asked for. Raises ConfigError."""
    if not train.float8:
        return
    if train.dtype != "bf16":
        raise ConfigError(
            f"train.float8 (true) gives activations in bfloat16, train.dtype is {train.dtype}; set"
            " train.dtype=bf16"
        )
    for name, value, stands in (
        ("parallel.tp", parallel.tp, 1),
        ("memory.ffn_tiles", memory.ffn_tiles, 1),
    ):
        if value != stands:
            raise ConfigError(
                f"train.float8 (true) multiplies whole layers, {name} is {value}; set"
                f" {name}={stands}"
            )
    if parallel.splits_backward:
        raise ConfigError(
            f"train.float8 (true) takes both gradients at once, pp_schedule={parallel.pp_schedule}"
            " takes them apart; use the schedule 1f1b or interleaved"
        )
    tokens = train.micro_batch_sequences * train.seq_len // parallel.cp
    widths = {
        "model.dim": model.dim,
        "the width of all heads": model.attention_dim,
        "model.ffn_dim": model.ffn_dim,
    }
    widths["the width of queries, keys and values"] = (
        model.num_heads + 2 * model.num_kv_heads
    ) * model.head_dim
    for name, width in (widths | {"tokens of a micro batch on a process": tokens}).items():
        if width % 16:
            raise ConfigError(
                f"train.float8 (true) needs multiples of 16, {name} is {width}; change it or set"
                " train.float8=false"
            )

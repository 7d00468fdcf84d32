"""What a training run is told: numbers of steps, and its layout. Standard library only, so flows
import it for nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_core.config import NOT_IN_KEY, ConfigError
from llm_core.data.config import DataConfig
from llm_core.parallel.degrees import ContextKind, Schedule, StagePlan, TensorOverlap

GRACE_S = 120.0
"""Enough for the state of seven billion weights, 84 GB with that of AdamW, at 1 GB/s."""


@dataclass(frozen=True)
class TrainConfig:
    """How long, in what pieces, and what is watched on the way."""

    num_steps: int
    """Optimizer updates."""
    global_batch_sequences: int
    """Sequences in one optimizer update, over all processes."""
    seq_len: int
    """Tokens in one sequence."""
    micro_batch_sequences: int = field(metadata=NOT_IN_KEY)
    """Sequences in one forward/backward on one process; larger is faster until memory is full."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward; weights and gradient sums are float32 in all. fp16 needs
    optim.loss_scale."""
    float8: bool = False
    """Products of the blocks' linear layers in 8 bits, with dtype=bf16: `llm_core.model.float8`.
    For Hopper GPUs, with compile."""
    seed: int = 0
    """Decides initial weights and the order of the data."""
    validate_every: int = 0
    """Steps between validations; 0: only after the last step."""
    max_val_sequences: int = 256
    """Validation sequences, spread evenly over the split."""
    checkpoint_every: int = field(default=100, metadata=NOT_IN_KEY)
    """Steps between checkpoints; a killed run resumes from the last one."""
    checkpoint_in_background: bool | None = field(default=None, metadata=NOT_IN_KEY)
    """Write checkpoints beside the next steps, from a copy in main memory; null: on a GPU, if no
    state is on disk."""
    keep_checkpoints: int = field(default=2, metadata=NOT_IN_KEY)
    """Newest checkpoints that stay while training goes on."""
    keep_best_checkpoint: bool = field(default=False, metadata=NOT_IN_KEY)
    """Also keep that of the lowest validation loss: a validation that finds one saves a
    checkpoint."""
    restart: bool = field(default=False, metadata=NOT_IN_KEY)
    """Begin at step 0 where there are checkpoints and none is sound, which is refused without;
    sound ones are gone on from."""
    grace_s: float = field(default=GRACE_S, metadata=NOT_IN_KEY)
    """How long the processes may take to save after SIGTERM before they are killed; longer than one
    checkpoint takes. What runs the command must wait longer still (Slurm: `--signal=B:TERM@180`;
    Kubernetes: terminationGracePeriodSeconds)."""
    log_every: int = field(default=1, metadata=NOT_IN_KEY)
    """Steps between fetches of metrics from the device; every step is logged all the same."""
    attention: Literal[
        "auto", "sdpa", "reference", "cudnn", "flash", "fa3", "fa4", "varlen", "flex"
    ] = field(default="auto", metadata=NOT_IN_KEY)
    """Kernel of attention, by `llm_core.model.attend`; auto: sdpa."""
    kernels: Literal["torch", "triton", "quack"] = field(default="torch", metadata=NOT_IN_KEY)
    """Who computes what stands between the products of a block. triton: kernels of our own, one
    pass over memory each way, on GPUs (`llm_core.model.operations`). quack: those, and SwiGLU
    within the products around it by the package quack-kernels."""
    compile: bool = field(default=False, metadata=NOT_IN_KEY)
    """Compile each block (torch.compile): faster steps on GPUs, after a minute of compiling."""
    profile_steps: tuple[int, ...] = field(default=(), metadata=NOT_IN_KEY)
    """First and last step, counted from 1, of a profile by torch.profiler: a trace and a table by
    kind of work of each rank."""
    init_from: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """Hugging Face folder (safetensors) whose weights training starts from; its contents are in the
    key, its place is not."""
    data: DataConfig = field(default_factory=DataConfig)
    """Packing, order and mixture of the sequences."""

    def __post_init__(self) -> None:
        for name in (
            "num_steps",
            "global_batch_sequences",
            "micro_batch_sequences",
            "seq_len",
            "max_val_sequences",
            "checkpoint_every",
            "keep_checkpoints",
            "log_every",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.profile_steps and not (
            len(self.profile_steps) == 2 and 1 <= self.profile_steps[0] <= self.profile_steps[1]
        ):
            raise ConfigError(
                f"profile_steps ({list(self.profile_steps)}) must be the first and the last step,"
                " from 1 on; try [10,12], or [] for none"
            )
        if self.profile_steps and self.profile_steps[1] > self.num_steps:
            raise ConfigError(
                f"profile_steps ({list(self.profile_steps)}) must not go beyond num_steps"
                f" ({self.num_steps})"
            )
        if not 0 < self.grace_s < math.inf:
            raise ConfigError(f"grace_s ({self.grace_s}) must be seconds above 0; try 120")
        if self.validate_every < 0:
            raise ConfigError(
                f"validate_every ({self.validate_every}) must not be negative; 0 validates after"
                " the last step only"
            )

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_sequences * self.seq_len


Kind = Literal["none", "ddp", "zero1", "zero2", "fsdp", "hsdp"]


@dataclass(frozen=True)
class ParallelConfig:
    """How the work is laid out over processes; the same answer from every layout, within
    rounding."""

    kind: Kind = "none"
    """none: one process. ddp: whole weights on each. zero1: optimizer state sharded. zero2:
    gradients too, and weights but for the time of a micro batch. fsdp: weights then too, but for a
    block at a time (ZeRO-3). hsdp: fsdp within groups of dp_shard, replicated over the groups."""
    num_processes: int = 1
    """Processes of the run, one per GPU: pp x cp x tp x the data-parallel degree, which is what
    they leave. The train stage starts all on its machine. `docs/guides/several-gpus.md` says how
    several machines share a run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: GPUs where there are any."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collectives library; auto: nccl on GPUs, gloo on CPUs."""
    max_restarts: int = 0
    """How often torchrun starts all processes again, from the last checkpoint, after one of several
    was lost or gave up."""
    num_threads: int = 0
    """CPU threads of one process; 0: the machine's cores over its processes. Equal bits need equal
    threads."""
    dp_shard: int = 0
    """Processes that share one set of weights under hsdp; 0 for every other kind, where all that
    hold the same layers do."""
    pp: int = 1
    """Pipeline ranks, each with a run of the layers; `kind` lays out the processes that hold the
    same layers."""
    pp_schedule: Schedule = "1f1b"
    """Order of the micro batches of a step through the pipeline; naive: one after another."""
    pp_stages_per_rank: int = 0
    """Runs of layers of one pipeline rank; 0: one, or two of the schedules that need more.
    interleaved and zero_bubble take three and more: less idle time, more messages."""
    cp: int = 1
    """Context ranks, each with a slice of the tokens of every sequence."""
    cp_kind: ContextKind = "all_gather"
    """all_gather: keys and values go to every context rank. ulysses: heads are exchanged for
    tokens. ring: keys and values go round, so that no context rank ever holds those of a whole
    sequence; with train.attention=auto, sdpa or reference."""
    cp_balanced: bool = False
    """Give each context rank an early and a late chunk, for equal work under causal attention; with
    all_gather and ring."""

    tp: int = 1
    """Tensor ranks, which share the heads, channels and ids of every layer."""
    sequence_parallel: bool = True
    """Cut the residual stream along tokens between the layers that tensor ranks share: the same
    traffic, less memory."""
    tp_overlap: TensorOverlap = "none"
    """Exchanges of tensor ranks beside the products of blocks, piece by piece, with
    sequence_parallel. ring: on any device. symmetric: GPUs of one machine read each other's memory,
    as over NVLink. none: one after another."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ConfigError(
                f"max_restarts ({self.max_restarts}) must not be negative; 0 starts nothing again"
            )
        if self.num_processes < 1 or self.num_threads < 0:
            raise ConfigError(
                f"num_processes ({self.num_processes}) must be at least 1 and num_threads"
                f" ({self.num_threads}) at least 0"
            )
        if self.kind == "none" and self.num_processes > 1:
            raise ConfigError(
                f"num_processes ({self.num_processes}) needs a layout over processes; set"
                " parallel=ddp, zero1, zero2 or fsdp"
            )
        if min(self.pp, self.cp, self.tp) < 1:
            raise ConfigError(
                f"pp, cp and tp ({self.pp}, {self.cp} and {self.tp}) must each be at least 1, which"
                " is one process"
            )
        if self.tp_overlap != "none" and (self.tp == 1 or not self.sequence_parallel):
            raise ConfigError(
                f"tp_overlap ({self.tp_overlap}) needs tensor ranks with the residual stream cut,"
                f" tp is {self.tp} and sequence_parallel {str(self.sequence_parallel).lower()}; set"
                " tp_overlap=none, or tp=2 or more and sequence_parallel=true"
            )
        if self.tp_overlap == "symmetric" and self.device == "cpu":
            raise ConfigError(
                "tp_overlap (symmetric) reads the memory of other GPUs, device is cpu; set"
                " tp_overlap=ring"
            )
        if self.backend == "nccl" and self.device == "cpu":
            raise ConfigError(
                "backend (nccl) moves GPU memory only, device is cpu; set backend=gloo or auto"
            )

    @property
    def shards_weights(self) -> bool:
        """Whether FSDP holds the weights, and so casts them itself."""
        return self.kind in ("zero2", "fsdp", "hsdp")

    @property
    def dp(self) -> int:
        """Data-parallel degree: processes that read different sequences."""
        return self.num_processes // (self.pp * self.cp * self.tp)

    @property
    def product(self) -> str:
        """How the processes are shared out, as messages have it."""
        shards = f" (dp_shard {self.dp_shard})" if self.dp_shard else ""
        return f"pp {self.pp} x dp {self.dp}{shards} x cp {self.cp} x tp {self.tp}"

    def plan(self, num_layers: int) -> StagePlan | None:
        """Which pipeline rank has which layers; None without a pipeline. Raises ConfigError."""
        return (
            StagePlan(self.pp_schedule, self.pp, num_layers, self.pp_stages_per_rank)
            if self.pp > 1
            else None
        )

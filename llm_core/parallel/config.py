"""How the processes of a run share its work. Standard library only, so flows import it for
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError
from llm_core.parallel.degrees import ContextKind, Schedule, StagePlan, TensorOverlap

Kind = Literal["none", "ddp", "zero1", "zero2", "fsdp", "hsdp"]
SPLIT_BACKWARD: tuple[Schedule, ...] = ("zero_bubble", "zero_bubble_v", "dualpipe_v")


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
    they leave. The train stage starts all on its machine; `docs/training.md` has how several
    machines share a run."""
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
    def splits_backward(self) -> bool:
        """Whether the schedule takes gradients of inputs and of weights apart, in two passes."""
        return self.pp > 1 and self.pp_schedule in SPLIT_BACKWARD

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

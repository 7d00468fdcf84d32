"""Configures how the processes of a run share its work. Standard library only, so flows import it
for nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llm_core.config import ConfigError, check_bounds
from llm_core.model.config import ModelConfig
from llm_core.parallel.degrees import (
    ContextKind,
    Schedule,
    StagePlan,
    TensorOverlap,
    end_layers,
)
from llm_core.parallel.grid.shape import GridShape, TensorKind, grid_of
from llm_core.parallel.outer import OuterConfig

Kind = Literal["none", "ddp", "zero1", "zero2", "fsdp", "hsdp", "server", "auto"]
Compression = Literal["none", "int8", "fp8", "powersgd", "onebit"]
SPLIT_BACKWARD: tuple[Schedule, ...] = ("zero_bubble", "zero_bubble_v", "dualpipe_v")


@dataclass(frozen=True)
class ParallelConfig:
    """How the work is laid out over processes; the same answer from every layout, within
    rounding."""

    kind: Kind = "none"
    """What data-parallel processes share. none: one process. ddp: nothing, each holds all weights.
    zero1: weights and optimizer state are sharded, but for a copy of the weights in train.dtype and
    the sum of gradients during a step. zero2: gradients are sharded too. fsdp: also the copy,
    gathered one block at a time (ZeRO-3). hsdp: fsdp within groups of dp_shard, replicated over the
    groups. server: a parameter server, for teaching, on CPUs. auto: the planner chooses degrees,
    kind, micro batch and recomputation for the devices of `hardware`."""
    num_processes: int = 1
    """Processes of the run, one per GPU: pp x cp x tp x the data-parallel degree, which takes what
    the others leave. They run on one machine, or on the nodes of cluster.num_nodes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where training runs. auto: on GPUs where there are any."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Library for collectives. auto: nccl on GPUs, gloo on CPUs."""
    max_restarts: int = 0
    """How often torchrun restarts all processes from the last checkpoint after one is lost or
    fails."""
    timeout_s: float = 1800.0
    """Longest that a collective may take, and that a silent process is waited for. Then the run
    ends, and every process leaves its flight records in the work directory."""
    heartbeat_s: float = 60.0
    """Within this time a process that is stopped, or whose machine is lost, is named in the log, in
    status.json and in metrics.jsonl."""
    flight_records: int = 2000
    """Collectives that each process remembers, to tell afterwards which one is behind. 0: none."""
    num_threads: int = 0
    """CPU threads of one process. 0: the machine's cores divided by its processes. Results are the
    same bits only for equal threads."""
    dp_shard: int = 0
    """Processes that share one set of weights under hsdp. 0 for every other kind, where all that
    hold the same layers share one."""
    pp: int = 1
    """Pipeline ranks, each with a run of layers; `kind` applies to the processes that hold the same
    layers."""
    pp_schedule: Schedule = "1f1b"
    """Order of a step's micro batches through the pipeline. naive: one after another."""
    pp_stages_per_rank: int = 0
    """Runs of layers of one pipeline rank. 0: one, or two in schedules that need more. interleaved
    and zero_bubble accept three and more: less idle time, more messages."""
    ep: int = 1
    """Expert ranks, which share out the experts of each layer and send tokens to them, where FSDP
    would gather the experts. 1, or as many as share one set of weights: dp_shard under hsdp, and
    all that hold the same layers under zero1, zero2 and fsdp."""
    cp: int = 1
    """Context ranks, each with a slice of every sequence."""
    cp_kind: ContextKind = "all_gather"
    """How context ranks attend to each other's tokens. all_gather: keys and values go to every
    rank. ulysses: heads are exchanged for tokens. ring: keys and values pass from rank to rank, so
    none ever holds those of a whole sequence; with train.attention=auto, sdpa or reference."""
    cp_balanced: bool = False
    """Give each context rank an early and a late slice, which balances causal attention; for
    all_gather and ring."""

    tp: int = 1
    """Tensor ranks, which divide the heads, channels and ids of every layer."""
    tp_kind: TensorKind = "1d"
    """How tensor ranks share a layer. 1d: each has some heads, channels and ids of every layer. 2d,
    2.5d and 3d: blocks of matrices and of activations, on a square, on tp_depth squares and on a
    cube of tensor ranks."""
    tp_depth: int = 1
    """Squares of 2.5d, which have equal weights and different sequences of a micro batch."""
    sequence_parallel: bool = True
    """Split the residual stream along tokens between layers of tensor ranks: the same traffic, less
    memory."""
    tp_overlap: TensorOverlap = "none"
    """How exchanges of tensor ranks overlap with the products of blocks; needs sequence_parallel.
    none: not at all. ring: piece by piece, on any device. symmetric: piece by piece, where GPUs of
    one machine read each other's memory, as over NVLink."""
    compress: Compression = "none"
    """How ddp sums gradients in fewer bytes, after backward. none: exactly. int8, fp8: in 8-bit
    numbers. powersgd: matrices as products of two thin ones (Vogels et al., 2019). onebit: momentum
    in signs (1-bit Adam, Tang et al., 2021; 1-bit LAMB, Li et al., 2021). The result then depends
    on the number of processes."""
    compress_warmup_steps: int = 0
    """First steps, whose sums are exact."""
    compress_rank: int = 4
    """Columns of the two thin matrices of powersgd."""

    servers: int = 0
    """Of kind=server: processes that keep and update weights, each its part, and train as well. 0:
    all of them."""
    staleness: int = 0
    """Of kind=server: steps that a worker may be ahead of the slowest one. 0: all wait for each
    other and the result is that of ddp. Otherwise servers update with each worker's gradient as it
    comes, which was taken of older weights (Ho et al., 2013); the result depends on the timing."""
    outer: OuterConfig = field(default_factory=OuterConfig)

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ConfigError(
                f"max_restarts ({self.max_restarts}) must not be negative; 0 starts nothing again"
            )
        check_bounds(self, timeout_s=(1, None), heartbeat_s=(1, None), flight_records=(0, None))
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
        if min(self.pp, self.ep, self.cp, self.tp) < 1:
            raise ConfigError(
                f"pp, ep, cp and tp ({self.pp}, {self.ep}, {self.cp} and {self.tp}) must each be at"
                " least 1, which is one process"
            )
        if self.ep > 1 and not self.shards_weights:
            raise ConfigError(
                f"ep ({self.ep}) shares out experts among processes that share weights, kind is"
                f" {self.kind}; set parallel=zero1, zero2, fsdp or hsdp, or ep=1"
            )
        if self.grid is not None and self.pp * self.cp > 1:
            raise ConfigError(
                f"tp_kind ({self.tp_kind}) does not go with pipeline and context ranks, pp is"
                f" {self.pp} and cp {self.cp}; set both 1, or tp_kind=1d"
            )
        if self.grid is not None and (self.tp_overlap != "none" or not self.sequence_parallel):
            raise ConfigError(
                f"tp_kind ({self.tp_kind}) always cuts the residual stream and overlaps nothing,"
                f" tp_overlap is {self.tp_overlap} and sequence_parallel"
                f" {str(self.sequence_parallel).lower()}; set tp_overlap=none and"
                " sequence_parallel=true, or tp_kind=1d"
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
        if self.outer.kind != "none" and self.kind != "none":
            raise ConfigError(
                f"outer.kind ({self.outer.kind}) joins runs of one process each, kind is"
                f" {self.kind}; set parallel=none, or outer.kind=none"
            )
        self._check_compression()
        self._check_servers()
        if self.backend == "nccl" and self.device == "cpu":
            raise ConfigError(
                "backend (nccl) moves GPU memory only, device is cpu; set backend=gloo or auto"
            )

    def _check_compression(self) -> None:
        check_bounds(self, compress_warmup_steps=(0, None), compress_rank=(1, None))
        if self.compress == "none":
            if self.compress_warmup_steps:
                raise ConfigError(
                    f"compress_warmup_steps ({self.compress_warmup_steps}) belongs to a compressed"
                    " sum, compress is none; set it 0"
                )
            return
        if self.kind != "ddp" or self.pp * self.cp * self.tp > 1:
            axes = f"pp {self.pp}, cp {self.cp}, tp {self.tp}"
            raise ConfigError(
                f"compress ({self.compress}) sums the gradients of whole weights over processes,"
                f" kind is {self.kind} with {axes}; set parallel=ddp with pp, cp and tp 1, or"
                " compress=none"
            )

    def _check_servers(self) -> None:
        check_bounds(self, servers=(0, None), staleness=(0, None))
        if self.kind != "server":
            if self.servers or self.staleness:
                raise ConfigError(
                    f"servers ({self.servers}) and staleness ({self.staleness}) belong to"
                    f" kind=server, kind is {self.kind}; set them 0"
                )
            return
        if self.device != "cpu" or self.pp * self.cp * self.tp > 1:
            raise ConfigError(
                "kind (server) sends whole weights between main memories, device is"
                f" {self.device} with pp {self.pp}, cp {self.cp}, tp {self.tp}; set"
                " parallel.device=cpu with pp, cp and tp 1, or parallel=ddp"
            )
        if self.servers > self.num_processes:
            raise ConfigError(
                f"servers ({self.servers}) must be processes of the run, num_processes is"
                f" {self.num_processes}; set servers=0, so that all serve"
            )

    @property
    def decides(self) -> dict[str, Any]:
        """The settings that change a run's result, and so belong in its key: none for layouts that
        compute what one process would."""
        if outer := self.outer.decides:
            return {"outer": outer}
        if self.staleness:
            return {name: getattr(self, name) for name in ("kind", "staleness", "num_processes")}
        if self.compress == "none":
            return {}
        names = ["compress", "compress_warmup_steps", "num_processes"]
        names += ["compress_rank"] if self.compress == "powersgd" else []
        return {name: getattr(self, name) for name in names}

    @property
    def shards_weights(self) -> bool:
        """Whether FSDP holds the weights, and so casts them itself."""
        return self.kind in ("zero1", "zero2", "fsdp", "hsdp")

    @property
    def gathers_once(self) -> bool:
        """Whether sharded weights are whole, in the dtype of training, all through a step."""
        # Gathered again for each micro batch of a pipeline they would cost more than they save.
        return self.shards_weights and (self.kind in ("zero1", "zero2") or self.pp > 1)

    @property
    def is_stale(self) -> bool:
        """Whether workers go on with weights that others have not updated yet."""
        return self.kind == "server" and self.staleness > 0

    @property
    def splits_backward(self) -> bool:
        """Whether the schedule takes gradients of inputs and of weights apart, in two passes."""
        return self.pp > 1 and self.pp_schedule in SPLIT_BACKWARD

    @property
    def grid(self) -> GridShape | None:
        """Of the tensor ranks; None for 1d."""
        return grid_of(self.tp_kind, self.tp, self.tp_depth)

    @property
    def columns(self) -> int:
        """Tensor ranks that have different heads, channels and ids."""
        return self.tp if self.grid is None else self.grid.side

    @property
    def dp(self) -> int:
        """Data-parallel degree: processes that read different sequences."""
        return self.num_processes // (self.pp * self.cp * self.tp)

    @property
    def readers(self) -> int:
        """Processes that read different sequences, over all members."""
        return self.dp * (self.outer.members if self.outer.kind != "none" else 1)

    @property
    def product(self) -> str:
        """How the processes are shared out, as messages have it."""
        shards = f" (dp_shard {self.dp_shard})" if self.dp_shard else ""
        shards += f" (ep {self.ep})" if self.ep > 1 else ""
        return f"pp {self.pp} x dp {self.dp}{shards} x cp {self.cp} x tp {self.tp}"

    def plan(self, model: ModelConfig) -> StagePlan | None:
        """Which pipeline rank has which layers; None without a pipeline. Raises ConfigError."""
        if self.pp == 1:
            return None
        each = self.pp_stages_per_rank
        return StagePlan(self.pp_schedule, self.pp, model.num_layers, each, end_layers(model))

"""Configures what a run recomputes, cuts into pieces or keeps elsewhere, so that it fits. Standard
library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig
from llm_core.optim.config import OptimizerKind

if TYPE_CHECKING:  # which holds a MemoryConfig
    from llm_core.training.config import ParallelConfig

Recompute = Literal["none", "selective", "every", "full"]
SPLIT_BACKWARD = ("zero_bubble", "zero_bubble_v", "dualpipe_v")
"""Pipeline schedules that take gradients of inputs and of weights apart."""


@dataclass(frozen=True)
class MemoryConfig:
    """Trades of time for memory; each gives the answer of the plain run, within rounding."""

    recompute: Recompute = "none"
    """Activations recomputed in backward. selective: all but every second product and attention, in
    each block. every: one block of every `every_k` whole. full: every block."""
    every_k: int = 2
    """Blocks of which one is recomputed, with recompute=every."""
    loss_chunk_tokens: int = 0
    """Tokens whose logits exist at once; 0: those of a whole micro batch."""
    ffn_tiles: int = 1
    """Pieces of the feed-forward's inner width, of which one exists at once and none is kept for
    backward; 1: whole."""
    weights_in: Literal["device", "host"] = "device"
    """Where a process keeps its share of weights and gradients under fsdp and hsdp, and updates it.
    host: main memory, from which the weights of a block come for its passes."""

    def __post_init__(self) -> None:
        if self.every_k < 1:
            raise ConfigError(
                f"every_k ({self.every_k}) must be at least 1, which recomputes every block"
            )
        if self.ffn_tiles < 1:
            raise ConfigError(
                f"ffn_tiles ({self.ffn_tiles}) must be at least 1, which leaves the feed-forward"
                " whole"
            )
        if self.loss_chunk_tokens < 0:
            raise ConfigError(
                f"loss_chunk_tokens ({self.loss_chunk_tokens}) must not be negative; 0 takes all at"
                " once"
            )


NO_SAVINGS = MemoryConfig()


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
    if memory.weights_in == "host" and (parallel.kind not in ("fsdp", "hsdp") or parallel.pp > 1):
        layout = f"kind is {parallel.kind}, pp {parallel.pp}"
        raise ConfigError(
            "memory.weights_in (host) needs parallel.kind=fsdp or hsdp without a pipeline,"
            f" {layout}; set parallel=fsdp, with parallel.num_processes=1 on one GPU, or use"
            " optim.state_in=host"
        )
    if memory.weights_in == "host" and optimizer in ("adafactor", "muon"):
        raise ConfigError(
            f"memory.weights_in (host) serves adamw and lion: optim.kind={optimizer} exchanges"
            " parts of weights among processes, which meet through GPUs; use optim=adamw or lion"
        )
    split_backward = parallel.pp > 1 and parallel.pp_schedule in SPLIT_BACKWARD
    if split_backward and memory.recompute == "selective":
        raise ConfigError(
            "memory.recompute (selective) keeps results for one backward pass, and"
            f" pp_schedule={parallel.pp_schedule} takes two through each block; use"
            " memory.recompute=full or every, or the schedule interleaved"
        )

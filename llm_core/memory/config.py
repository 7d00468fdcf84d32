"""Configures what a run recomputes, cuts into pieces or keeps elsewhere, so that it fits. Standard
library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError

Recompute = Literal["none", "selective", "every", "full"]
IfTooLarge = Literal["refuse", "warn", "ignore"]


@dataclass(frozen=True)
class MemoryConfig:
    """Trades of time for memory; each gives the answer of the plain run, within rounding."""

    recompute: Recompute = "none"
    """Activations that are recomputed in backward. selective: all but attention and every second
    product, in each block. every: one whole block of every `every_k`. full: every block."""
    every_k: int = 2
    """With recompute=every: one of so many blocks is recomputed."""
    loss_chunk_tokens: int = 0
    """Tokens whose logits exist at once. 0: those of a whole micro batch."""
    ffn_tiles: int = 1
    """Tiles of the feed-forward's inner width: activations of one exist at once, and none are kept
    for backward. Weights are gathered whole. 1: no tiles."""
    ffn_gather: Literal["whole", "tiles"] = "whole"
    """How parallel=fsdp gathers weights of feed-forwards. whole: with their block. tiles: a tile of
    `ffn_tiles` at a time, in each pass."""
    weights_in: Literal["device", "host", "disk"] = "device"
    """Where a process keeps its shard of weights and gradients, of a layout that shards weights.
    host: in main memory, where they are updated. Under zero1 and zero2 copies in train.dtype are
    then on the device all through a step (ZeRO-Offload), under fsdp and hsdp those of a block for
    its passes. disk: weights and their copies in files in optim.state_folder, a block in memory at
    a time (ZeRO-Infinity); gradients are in main memory."""
    if_too_large: IfTooLarge = "refuse"
    """What happens to a training whose predicted peak exceeds the memory of its GPU, or of the
    device that `hardware` names."""

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

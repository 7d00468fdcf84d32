"""What a run computes again, cuts into pieces or keeps elsewhere, so that it fits. Standard library
only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError

Recompute = Literal["none", "selective", "every", "full"]


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

"""Sets how much an engine keeps and computes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError, check_bounds


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How much an engine keeps and computes at once."""

    cache_tokens: int = 16384
    """Tokens of all requests whose keys and values fit the cache."""
    block_tokens: int = 16
    """Tokens of a block, a power of two. Prefixes are shared in whole blocks."""
    budget_tokens: int = 2048
    """Most tokens of a pass: decoding requests first, then pieces of prompts."""
    max_running: int = 64
    """Most answers that are written at once; others wait."""
    cache: Literal["model", "int8"] = "model"
    """Numbers of the cache. int8: 8 bits each, with a scale per token and head."""
    prefix_cache: bool = True
    """Whether a prompt may begin behind blocks that an earlier one left."""
    copy_weights: bool = True
    """Whether float32 weights on a CPU may be kept a second time, in a faster order."""

    burst_tokens: int = 0
    """Tokens that every running answer gets before any is told, while no request waits. 0: 32 on a
    GPU, where telling takes longer than a step, else 1."""

    def __post_init__(self) -> None:
        check_bounds(self, block_tokens=(1, None), max_running=(1, None), burst_tokens=(0, None))
        check_bounds(self, cache_tokens=(self.block_tokens, None), budget_tokens=(2, None))
        if self.block_tokens & (self.block_tokens - 1):
            raise ConfigError(f"block_tokens ({self.block_tokens}) must be a power of two; try 16")
        if self.budget_tokens <= self.max_running:
            raise ConfigError(
                f"budget_tokens ({self.budget_tokens}) must exceed max_running"
                f" ({self.max_running}), or prompts would wait while answers grow; raise it"
            )

    @classmethod
    def holding(cls, lengths: Sequence[int], window: int = 0) -> EngineConfig:
        """Room for as many of the longest sequences as run at once, and no more. window: tokens
        that a token attends in every layer; 0: all."""
        # What a pass computes and attends may begin within a block.
        most = window + cls.budget_tokens + cls.block_tokens if window else max(lengths)
        longest = sorted(lengths, reverse=True)[: cls.max_running]
        blocks = sum(-(-min(length, most) // cls.block_tokens) for length in longest)
        return cls(cache_tokens=blocks * cls.block_tokens)

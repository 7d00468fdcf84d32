"""Computes the feed-forward of a block: SwiGLU, Gemma's GeGLU, or GELU in one of two forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from llm_core.model.config import ModelConfig, block_of

# B batch · T tokens · D model width · F inner width

Gated = Callable[[Tensor, int], Tensor]
"""(gate_up [..., 2F] in blocks of channels, channels of a block) → [..., F]."""


class FeedForward(nn.Module, ABC):
    """Into the inner width, an activation there, and `down` again.

    `own_way`, where it is given, takes the place of all of it: (this, x_BTD) → its output.
    """

    down: nn.Linear
    own_way: Callable[[Any, Tensor], Tensor] | None

    def __init__(self, config: ModelConfig, into: str, width: int, inner: int = 0) -> None:
        """into: name of the layer into the inner width, which is part of names of weights. inner:
        width inside; 0: that of the config."""
        super().__init__()
        inner = inner or config.ffn_dim
        self.block, self.into_name, self.own_way = block_of(inner), into, None
        self.add_module(into, nn.Linear(config.dim, width, bias=config.ffn_bias))
        self.down = nn.Linear(inner, config.dim, bias=config.ffn_bias)

    @property
    def into(self) -> nn.Linear:
        return cast(nn.Linear, getattr(self, self.into_name))

    @abstractmethod
    def activate(self, inner: Tensor) -> Tensor:
        """The activation: what `into` gives → what `down` takes."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.own_way is not None:
            return self.own_way(self, x_BTD)
        return self.down(self.activate(self.into(x_BTD)))


def gated(gate_up: Tensor, block: int) -> Tensor:
    """silu(gate) * up by torch; `llm_core.model.operations` has kernels of our own."""
    gate, up = gate_up.unflatten(-1, (-1, 2, block)).unbind(-2)
    # Kernels of CPUs take more channels at once than a small block has, and go one by one through
    # what is left. Where blocks are wide this costs a pass over memory, and the copy is kept for
    # backward.
    gate = gate.contiguous() if gate.device.type == "cpu" else gate
    return (F.silu(gate) * up).flatten(-2)


class SwiGLU(FeedForward):
    """silu(gate) * up, then down (Shazeer, 2020); gate and up are one product in blocks of rows."""

    gate_up: nn.Linear
    gated: Gated

    def __init__(self, config: ModelConfig, inner: int = 0) -> None:
        super().__init__(config, "gate_up", 2 * (inner or config.ffn_dim), inner)
        self.gated = gated

    def activate(self, inner: Tensor) -> Tensor:
        return self.gated(inner, self.block)


class GeGLU(FeedForward):
    """gelu(gate) * up, then down (Shazeer, 2020), with GELU in its tanh form (Gemma); rows as those
    of SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, "gate_up", 2 * config.ffn_dim)

    def activate(self, inner: Tensor) -> Tensor:
        gate, up = inner.unflatten(-1, (-1, 2, self.block)).unbind(-2)
        return (F.gelu(gate, approximate="tanh") * up).flatten(-2)


class GELU(FeedForward):
    """Up, GELU (Hendrycks and Gimpel, 2016), down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, "up", config.ffn_dim)
        self.form = "none" if config.ffn == "exact_gelu" else "tanh"

    def activate(self, inner: Tensor) -> Tensor:
        return F.gelu(inner, approximate=self.form)


def make_feed_forward(config: ModelConfig) -> FeedForward:
    """That of a dense model."""
    if config.ffn == "geglu":
        return GeGLU(config)
    return SwiGLU(config) if config.ffn == "swiglu" else GELU(config)

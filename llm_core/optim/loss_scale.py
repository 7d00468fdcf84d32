"""Scales the loss so that float16 holds its gradients.

float16 has few exponents: small gradients vanish unless the loss is scaled up, large ones overflow
(Micikevicius et al., 2018). The scale is halved after `hysteresis` overflows, down to a floor, and
doubled after a while without. It is a power of two on the device, so scaling rounds nothing and
nothing waits for the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llm_core.optim.config import LossScaleConfig


class LossScaler:
    def __init__(self, config: LossScaleConfig, device: torch.device) -> None:
        self._config = config
        self.state = {
            "scale": torch.tensor(config.initial, dtype=torch.float32, device=device),
            "good_steps": torch.zeros((), dtype=torch.int64, device=device),
            "patience": torch.tensor(config.hysteresis, dtype=torch.int64, device=device),
        }

    @property
    def scale(self) -> Tensor:
        return self.state["scale"]

    @property
    def can_fall(self) -> Tensor:
        return self.scale > self._config.floor

    def observe(self, overflow: Tensor, idle: Tensor) -> None:
        """Set the next scale. overflow: this gradient was out of bounds; idle: there was none."""
        config, (scale, good_steps, patience) = self._config, self.state.values()
        # A step without targets is neither good nor an overflow.
        good_steps.copy_(torch.where(overflow, 0, good_steps + ~idle))
        patience.copy_(torch.where(overflow, patience - 1, patience))
        falls, grows = overflow & (patience <= 0), good_steps >= config.growth_interval_steps
        lower = (scale / 2).clamp(min=config.floor)
        # A scale beyond float32 would turn every gradient into infinities.
        higher = (scale * 2).clamp(max=2.0**100)
        scale.copy_(torch.where(falls, lower, torch.where(grows, higher, scale)))
        good_steps.copy_(torch.where(grows, 0, good_steps))
        patience.copy_(torch.where(grows, config.hysteresis, patience))

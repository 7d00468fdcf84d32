"""Balances experts without a loss: moves the bias by which they are chosen, after each update.

Wang et al., 2024, algorithm 1. A skipped step moves no bias, as it moves no weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from llm_core.optim.pieces import write_unless

# L layers of the whole model · E experts of a layer


class Balance:
    """biases: of the layers of this process, float32, by the number of the layer."""

    def __init__(self, biases: Mapping[int, Tensor], rate: float) -> None:
        self._biases, self._rate = biases, rate

    def update(self, loads_LE: Tensor, bad: Tensor) -> None:
        """loads_LE: tokens of each expert in the global batch. bad: whether the step is skipped."""
        short_LE = (loads_LE.mean(dim=1, keepdim=True) - loads_LE).sign()
        for layer, bias_E in self._biases.items():
            moved_E = bias_E + self._rate * short_LE[layer].to(bias_E.device, bias_E.dtype)
            write_unless(bad.to(bias_E.device), bias_E, moved_E)

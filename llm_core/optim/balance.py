"""Balances experts without a loss: moves the bias by which they are chosen, after each update.

Wang et al., 2024, algorithm 1. A skipped step moves no bias, as it moves no weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from llm_core.model.experts.router import ROUTER_BIAS
from llm_core.optim.method import Method
from llm_core.optim.pieces import write_unless
from llm_core.parallel.places import Place

# L layers of the whole model · E experts of a layer


@dataclass(frozen=True, eq=False)
class Bias:
    """That of a router, which each process with its layer has whole."""

    name: str
    data: Tensor

    @property
    def place(self) -> Place:
        return Place(self.data.shape, self.data.shape)


def named(biases: Mapping[int, Tensor]) -> list[Bias]:
    """Biases by the names that they have in the model."""
    return [Bias(f"blocks.{layer}.{ROUTER_BIAS}", bias) for layer, bias in biases.items()]


class Balance:
    """biases: of the layers of this process, float32, by the number of the layer.

    average: of `named(biases)`, beside that of the weights: a router of averaged weights has the
    scores that averaged biases balance. None: there is none.
    """

    def __init__(
        self, biases: Mapping[int, Tensor], rate: float, average: Method | None = None
    ) -> None:
        self._biases, self._rate, self.average = biases, rate, average

    def update(self, loads_LE: Tensor, bad: Tensor) -> None:
        """loads_LE: tokens of each expert in the global batch. bad: whether the step is skipped."""
        short_LE = (loads_LE.mean(dim=1, keepdim=True) - loads_LE).sign()
        for layer, bias_E in self._biases.items():
            moved_E = bias_E + self._rate * short_LE[layer].to(bias_E.device, bias_E.dtype)
            write_unless(bad.to(bias_E.device), bias_E, moved_E)

"""States that are saved without training, and what damages a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_core.checkpoint.state import collect_state
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import OptimConfig
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from tests.support.engine.small_runs import MODEL, OPTIM

ALONE = Ranks(0, 1, torch.device("cpu"))


class Run:
    """A model and its optimizer that can be moved on without training."""

    def __init__(
        self, dim: int = MODEL.dim, optim: OptimConfig = OPTIM, dtype: str = "fp32", **model: Any
    ) -> None:
        self.layout = Layout(Transformer(dataclasses.replace(MODEL, dim=dim, **model)))
        init_weights(self.layout.bare, 1)
        self.optimizer = build_optimizer(self.layout, optim, dtype)

    @property
    def parts(self) -> tuple[Layout, Optimizer]:
        return self.layout, self.optimizer

    def values(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in collect_state(*self.parts).items()}

    @torch.no_grad()
    def move(self) -> None:
        for tensor in collect_state(*self.parts).values():
            tensor.add_(1)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) for name, value in one.items()
    )


def damage(path: Path, how: str, place: float) -> None:
    data = bytearray(path.read_bytes())
    at = int(place * (len(data) - 1))
    if how == "cut":
        del data[at:]
    else:
        data[at] ^= 1 << at % 8
    path.write_bytes(bytes(data))

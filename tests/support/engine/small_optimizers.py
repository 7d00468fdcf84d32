"""A small model with gradients that are given, and the optimizers over it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from llm_core.optim.build import build_optimizer
from llm_core.optim.config import MuonConfig, OptimConfig
from llm_core.optim.optimizer import Optimizer
from llm_core.parallel.layout import Layout
from tests.support.engine.small_runs import MODEL

KINDS = ("adamw", "lion", "adafactor", "muon")
ONE = torch.ones((), dtype=torch.float64)


def make_optimizer(
    kind: str = "adamw",
    dtype: torch.dtype = torch.float64,
    train_dtype: str = "fp32",
    ema: float = 0.0,
    **values: Any,
) -> tuple[dict[str, Tensor], Optimizer, OptimConfig]:
    """(weights by name, optimizer, config); Muon iterates in the dtype of the weights."""
    values = {"lr": 1e-2, "clip_norm": 1e9, "muon": MuonConfig(dtype="fp32")} | values
    config = OptimConfig(kind=kind, **values)  # type: ignore[arg-type]
    model = Transformer(dataclasses.replace(MODEL, tied_embeddings=False))
    init_weights(model, seed=0)
    model.to(dtype)
    optimizer = build_optimizer(Layout(model), config, train_dtype, ema=ema)
    return dict(model.named_parameters()), optimizer, config


def set_gradients(weights: dict[str, Tensor], seed: int, factor: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights.values():
        weight.grad = (
            torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype)
            * factor
        )


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """To the bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(bits(one[name]), bits(other[name]))
        for name in one
    )


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)

"""Whole gradients of a step under any layout, as the optimizer gets them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_core.parallel.layout import Layout
from llm_core.parallel.weights import whole_weights
from llm_core.training.trainer import Trainer


@contextmanager
def gradients_into(found: dict[str, Tensor], trainer: Trainer) -> Iterator[None]:
    """Put into `found` the gradients of a step taken here, as the optimizer gets them."""
    update = trainer.optimizer.step

    def see(*arguments: Any) -> Tensor:
        show_gradients(trainer.layout)
        gradients = whole_weights(trainer.layout, trainer.ranks, gradient_of)
        found.update({f"gradient.{name}": value.clone() for name, value in gradients.items()})
        return update(*arguments)

    trainer.optimizer.step = see  # type: ignore[method-assign]
    yield
    trainer.optimizer.step = update  # type: ignore[method-assign]


def show_gradients(layout: Layout) -> None:
    """Put the gradients that servers have on all processes, where optimizers do not look."""
    if layout.servers is not None:
        for weight in filter(lambda w: w.requires_grad, layout.bare.parameters()):
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.broadcast(grad, layout.servers.owner(weight))
            weight.grad = grad


def gradient_of(weight: torch.nn.Parameter) -> Tensor:
    assert (weight.grad is None) != weight.requires_grad
    return torch.zeros_like(weight) if weight.grad is None else weight.grad.to(weight.dtype)

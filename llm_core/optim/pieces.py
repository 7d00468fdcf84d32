"""Gives the pieces of weights that this process updates, as plain tensors, whatever the layout.

A piece is the local tensor of an FSDP weight, and otherwise the weight itself (with tensor
parallelism, the part of it that is here). It shares memory with the model; optimizers compute on
pieces alone, so no step goes through DTensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from llm_core.config import ConfigError
from llm_core.model.adapter import AdaptedModelConfig, is_factor
from llm_core.model.transformer import global_name
from llm_core.optim.config import OptimConfig
from llm_core.optim.groups import Treatment, is_trained, treatments
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import Place, local, placed_weights, whole_shapes


@dataclass(frozen=True, eq=False)
class Piece:
    """This process's piece of one weight. Use it without gradients (torch.no_grad)."""

    name: str
    """Global name; both copies of a tied weight have that of the embedding."""
    weight: nn.Parameter
    place: Place
    """Where the piece lies in the whole weight."""
    treatment: Treatment
    elements: tuple[int, int] | None = None
    """(first, end) of the elements it stands for, flat; None: all, in their shape."""

    @property
    def data(self) -> Tensor:
        # Asked for each time: FSDP may move the memory of a shard when it first runs.
        return self._own(local(self.weight))

    @property
    def grad(self) -> Tensor:
        """In the dtype of the weight: a copy where gradients are kept in 16 bits."""
        grad = self.weight.grad
        assert grad is not None, f"{self.name} has no gradient"
        return self._own(local(grad).contiguous()).to(self.weight.dtype)

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor if self.elements is None else tensor.view(-1)[slice(*self.elements)]


def make_pieces(layout: Layout, config: OptimConfig) -> list[Piece]:
    """One per trained weight of this process. Raises ConfigError for rules that match nothing, and
    where nothing is trained."""
    shapes = whole_shapes(layout.bare.config)
    # A tied weight once, by its first name.
    names = {name: shapes[name] for name in shapes if name == global_name(layout.bare.config, name)}
    if isinstance(layout.bare.config, AdaptedModelConfig):  # the rest is frozen
        names = {name: shape for name, shape in names.items() if is_factor(name)}
    treated = treatments(names, config)
    if not any(is_trained(name, config) for name in names):
        raise ConfigError(
            "optim.groups freeze every weight (lr_factor 0), so there is nothing to train; leave"
            " some out of their match"
        )
    return [
        Piece(name, weight, place, treated[name])
        for name, weight, place in placed_weights(layout)
        if weight.requires_grad
    ]


@torch.no_grad()
def empty_state(pieces: Sequence[Piece], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Zeros of the shape of each piece; in the dtype of the weights when None."""
    return [torch.zeros_like(piece.data, dtype=dtype, requires_grad=False) for piece in pieces]


def by_treatment(pieces: Sequence[Piece]) -> Iterator[tuple[Treatment, list[int]]]:
    """Indices of the pieces that are treated alike, without those that are empty here."""
    found: dict[Treatment, list[int]] = {}
    for index, piece in enumerate(pieces):
        if local_size(piece):
            found.setdefault(piece.treatment, []).append(index)
    yield from found.items()


def local_size(piece: Piece) -> int:
    with torch.no_grad():
        return piece.data.numel()


def write_unless(bad: Tensor, old: Tensor, new: Tensor) -> None:
    """Put `new` into `old`; if `bad`, `old` keeps its bits, whatever `new` is. No host waits."""
    if old.dtype == new.dtype:
        torch.where(bad, old, new, out=old)
    else:
        old.copy_(torch.where(bad, old, new.to(old.dtype)))

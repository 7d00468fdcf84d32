"""Decides which grids of tensor ranks there are, and how a model lies on them.

| kind | tensor ranks | tokens are cut by | weights are cut by |
|---|---|---|---|
| 2d (Xu et al. 2021, "Optimus") | side² | row | column and row |
| 2.5d (Wang et al. 2021, "Tesseract") | depth x side² | depth and row | column and row, alike on each depth |
| 3d (Bian et al. 2021) | side³ | depth and row, or depth and column | column, row and depth |

Columns share what 1D ranks share: heads, channels and ids. Rows share the width of the model, and in
3d depths what rows have left of it. Standard library only, so that flows import it for nothing.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from llm_core.config import ConfigError
from llm_core.model.config import ModelConfig

TensorKind = Literal["1d", "2d", "2.5d", "3d"]
Layer = Literal["into", "out", "embed"]
"""From the stream to inner features, from these to the stream, and from ids to the stream."""


@dataclass(frozen=True)
class GridShape:
    """side x side x depth processes."""

    kind: TensorKind
    side: int
    depth: int

    @property
    def token_parts(self) -> int:
        """Into how many parts the sequences of a micro batch are cut."""
        return self.side * self.depth

    @property
    def width_parts(self) -> int:
        """Into how many parts weights are cut along the width of the model."""
        return self.side * (self.depth if self.kind == "3d" else 1)

    def received(self, layer: Layer, tokens: int, inner: int, width: int) -> float:
        """Elements that a process receives for a layer, forward and backward, of so many tokens on
        the whole grid; as many are sent. inner: heads' width, channels or ids. Without the sums
        over depths at the end of a step (`summa`, `cube`)."""
        q, weight = self.side, inner * width
        if self.kind == "3d":
            wide = 0 if layer == "embed" else tokens * inner
            return 2 * (q - 1) / q**3 * (weight + tokens * width + wide)
        stream, both = tokens // self.depth * width, (q - 1) / q**2
        if layer == "into":
            return both * 3 * (stream + weight)
        return both * (2 * stream + (2 if layer == "embed" else 3) * weight)


def grid_of(kind: TensorKind, num_ranks: int, depth: int) -> GridShape | None:
    """None for 1d. Raises ConfigError where so many ranks do not make such a grid."""
    if kind != "2.5d" and depth != 1:
        raise ConfigError(
            f"tp_depth ({depth}) belongs to tp_kind=2.5d, tp_kind is {kind}; set tp_depth=1"
        )
    if kind == "1d":
        return None
    if kind == "2.5d" and (depth < 2 or num_ranks % depth):
        raise ConfigError(
            f"tp_depth ({depth}) must be 2 or more for tp_kind=2.5d, and tp ({num_ranks}) that"
            " many times a square; try tp=8 and tp_depth=2, or tp_kind=2d"
        )
    power = 3 if kind == "3d" else 2
    layer = num_ranks // depth
    side = round(layer ** (1 / power))
    if side < 2 or side**power != layer:
        less = max(2, math.floor(layer ** (1 / power) + 1e-9))
        near = " or ".join(str(depth * n**power) for n in (less, less + 1))
        of_what = "a cube" if kind == "3d" else "a square" if depth == 1 else f"{depth} squares"
        raise ConfigError(f"tp ({num_ranks}) must be {of_what} for tp_kind={kind}; try tp={near}")
    return GridShape(kind, side, side if kind == "3d" else depth)


def check_grid(model: ModelConfig, grid: GridShape) -> None:
    """Raises ConfigError where heads, channels, ids or the model's width do not divide."""
    channels = model.ffn_blocks if model.is_gated else model.ffn_dim
    blocks = " blocks of gate and up" if channels != model.ffn_dim else ""
    shared = (
        ("model.num_kv_heads", model.num_kv_heads, "", grid.side),
        ("model.ffn_dim", channels, blocks, grid.side),
        ("model.dim", model.dim, "", grid.width_parts),
    )
    for name, value, unit, parts in shared:
        if value % parts:
            raise ConfigError(
                f"{name} ({value}{unit}) must be a multiple of {parts} for"
                f" parallel.tp_kind={grid.kind} of side {grid.side}; use fewer tensor ranks, or"
                " parallel.tp_kind=1d"
            )
    if model.vocab_size and (grid.side - 1) * -(-model.vocab_size // grid.side) >= model.vocab_size:
        raise ConfigError(
            f"model.vocab_size ({model.vocab_size}) must leave each of {grid.side} columns some"
            " ids; use fewer tensor ranks"
        )

"""Initial weights that do not depend on the layout: each tile of a weight has a random stream.

The stream is seeded by the run's seed, the parameter's name and the place of the tile, so one
process and any sharding start from the same numbers, whatever the order of modules, and a process
draws the tiles that its own pieces touch and no others. Normal weights whose standard deviation
falls with the square root of the width, 0.018 at GPT-2's 768 (which took 0.02 at every width;
narrow models learn slower from that); projections back into the residual stream are smaller by
sqrt(2 x layers), so that its variance does not grow with depth (Radford et al., 2019, section 2.3).
Norm weights are ones, biases zeros.

Of an adapter's factors A has the variance 1 / (3 x inputs), as in PEFT (there uniform), and B is
zero, so that training starts from the model as it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from llm_core.model.adapter import is_factor
from llm_core.model.config import ModelConfig
from llm_core.model.experts.router import router_biases
from llm_core.model.transformer import Transformer, global_name

TILE = (256, 256)
"""Rows and columns drawn together: seeding a stream then costs 1 % of its numbers, and a piece that
cuts tiles draws few numbers in vain."""

LEADS_BACK = (
    "attention.out.weight",
    "ffn.down.weight",
    "ffn.experts.down.weight",
    "ffn.shared.down.weight",
)
"""Ends of the names of projections back into the residual stream."""

Box = tuple[range, ...]
"""What a piece is of a whole weight, along each dim."""
Locate = Callable[[str, nn.Parameter], tuple[Sequence[int], Tensor, Box]]
"""(global name, parameter) → shape of the whole weight, the piece that is here, which box it is."""


def init_weights(
    model: Transformer,
    seed: int,
    locate: Locate | None = None,
    chosen: Callable[[str], bool] = lambda _name: True,
) -> None:
    """Give every parameter its initial value, or the pieces of it that are here. Costs a tile of
    extra memory. chosen: whether one of this name gets it."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not chosen(name):
                continue
            found = global_name(model.config, name)
            shape, piece, box = (locate or _whole)(found, parameter)
            if name.endswith("lora.b"):
                piece.zero_()
            elif len(shape) == 1:
                piece.fill_(0.0 if found.endswith("bias") else 1.0)
            else:
                _fill(piece, box, found, shape, std_of(model.config, name, shape), seed)
        for name, bias in router_biases(model):
            if chosen(name):
                bias.zero_()


def std_of(config: ModelConfig, name: str, shape: Sequence[int]) -> float:
    """Standard deviation of the initial values of a matrix."""
    if is_factor(name):
        return 1 / math.sqrt(3 * shape[1])
    leads_back = name.endswith(LEADS_BACK)
    return 0.5 / math.sqrt(config.dim) / (math.sqrt(2 * config.num_layers) if leads_back else 1)


def _whole(_name: str, parameter: nn.Parameter) -> tuple[Sequence[int], Tensor, Box]:
    return parameter.shape, parameter, tuple(map(range, parameter.shape))


def drawn(name: str, shape: Sequence[int], std: float, seed: int) -> Tensor:
    """A whole matrix of float32 numbers, the same wherever and in whatever pieces it is made."""
    whole = torch.empty(tuple(shape))
    _fill(whole, tuple(map(range, shape)), name, shape, std, seed)
    return whole


def _fill(piece: Tensor, box: Box, name: str, shape: Sequence[int], std: float, seed: int) -> None:
    rows, columns = box
    for top in range(rows.start - rows.start % TILE[0], rows.stop, TILE[0]):
        for left in range(columns.start - columns.start % TILE[1], columns.stop, TILE[1]):
            tile = draw_tile(name, shape, (top, left), std, seed)
            above, before = max(rows.start - top, 0), max(columns.start - left, 0)
            inside = tile[above : rows.stop - top, before : columns.stop - left]
            y, x = top + above - rows.start, left + before - columns.start
            piece[y : y + inside.shape[0], x : x + inside.shape[1]] = inside


def draw_tile(
    name: str, shape: Sequence[int], place: tuple[int, int], std: float, seed: int
) -> Tensor:
    """The float32 tile whose first element is at (row, column); those at the end of a weight are
    smaller. Made on the CPU so that devices agree."""
    sizes = [
        min(tile, whole - first) for tile, whole, first in zip(TILE, shape, place, strict=True)
    ]
    text = f"{seed}:{name}:{place[0]}:{place[1]}"
    stream = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    return torch.empty(sizes).normal_(std=std, generator=torch.Generator().manual_seed(stream))

"""Rounds weights to 8 or 4 bits and restores them.

| format | numbers | scales | bits a weight |
|---|---|---|---|
| int8 | -127 to 127 | one float32 a row (output channel) | 8 |
| int4 | -8 to 7, and an offset | bfloat16 scale and offset for each GROUP inputs of a row | 4.5 |
| fp8 | E4M3 | one float32 a row | 8 |

A weight is numbers * scale + offset; int8 and fp8 have no offset. Scales are rounded to their dtype
before numbers are chosen, so restoring is exact arithmetic on what is stored.

int4 packs two numbers, each plus 8, in a byte: of the GROUP inputs of a group, byte i has input i
in its low and input i + GROUP / 2 in its high half, so both halves are runs of neighbours. Rows
whose inputs do not fill the last group are padded; what restores them cuts the padding off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from llm_core.config import ConfigError

# N outputs (rows) · K inputs · G groups of a row
Format = Literal["int8", "int4", "fp8"]
FORMATS: tuple[Format, ...] = get_args(Format)
GROUP = 64
"""Inputs of a row that share a scale in int4."""
PIECE_ROWS = 1024
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Rounded:
    """A weight_NK in few bits."""

    format: Format
    num_inputs: int
    numbers: Tensor
    """int8 or float8_e4m3fn [N, K]; of int4 uint8 [N, G * GROUP / 2]."""
    scale: Tensor
    """float32 [N]; of int4 bfloat16 [N, G]."""
    offset: Tensor | None = None
    """Of int4 bfloat16 [N, G]."""

    def tensors(self) -> dict[str, Tensor]:
        """What is stored, by name."""
        found = {"numbers": self.numbers, "scale": self.scale}
        return found | ({} if self.offset is None else {"offset": self.offset})

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def to(self, device: torch.device | str) -> Rounded:
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)


def stored_shapes(
    format: Format, num_outputs: int, num_inputs: int
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each tensor of `Rounded.tensors`."""
    if format == "int4":
        groups = -(-num_inputs // GROUP)
        each = ((num_outputs, groups), torch.bfloat16)
        numbers = ((num_outputs, groups * GROUP // 2), torch.uint8)
        return {"numbers": numbers, "scale": each, "offset": each}
    dtype = torch.int8 if format == "int8" else torch.float8_e4m3fn
    scale = ((num_outputs,), torch.float32)
    return {"numbers": ((num_outputs, num_inputs), dtype), "scale": scale}


def round_weight(weight_NK: Tensor, format: Format) -> Rounded:
    """Each number to the nearest of its format, PIECE_ROWS at a time, since rounding takes several
    times the memory in float32. Raises ConfigError for infinite or undefined weights."""
    pieces = [_round_rows(rows, format) for rows in weight_NK.detach().split(PIECE_ROWS)]
    if len(pieces) == 1:
        return pieces[0]
    parts = [piece.tensors() for piece in pieces]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Rounded(format, weight_NK.shape[1], **joined)


def _round_rows(weight_NK: Tensor, format: Format) -> Rounded:
    weight_NK = weight_NK.float()
    if not bool(torch.isfinite(weight_NK).all()):
        raise ConfigError(
            f"a weight {tuple(weight_NK.shape)} has infinite or undefined numbers, which no scale"
            " fits; train again from a checkpoint before they came up"
        )
    if format == "int4":
        groups_NGI = grouped(weight_NK)
        scale_NG, offset_NG = int4_scales(groups_NGI)
        numbers_NGI = nearest_int4(groups_NGI, scale_NG, offset_NG)
        return Rounded(format, weight_NK.shape[1], pack(numbers_NGI), scale_NG, offset_NG)
    most_N = weight_NK.abs().amax(1)
    if format == "int8":
        scale_N = (most_N / 127).clamp(min=TINY)
        numbers = (weight_NK / scale_N[:, None]).round_().to(torch.int8)
    else:
        largest = torch.finfo(torch.float8_e4m3fn).max
        scale_N = (most_N / largest).clamp(min=TINY)
        scaled = (weight_NK / scale_N[:, None]).clamp_(-largest, largest)
        numbers = scaled.to(torch.float8_e4m3fn)
    return Rounded(format, weight_NK.shape[1], numbers, scale_N)


def restore(rounded: Rounded, dtype: torch.dtype = torch.float32) -> Tensor:
    """weight_NK that the numbers stand for, computed in `dtype`."""
    if rounded.offset is None:
        return rounded.numbers.to(dtype) * rounded.scale.to(dtype)[:, None]
    numbers_NGI = unpack(rounded.numbers).to(dtype)
    scale, offset = rounded.scale.to(dtype), rounded.offset.to(dtype)
    return (numbers_NGI * scale[..., None] + offset[..., None]).flatten(1)[:, : rounded.num_inputs]


def grouped(weight_NK: Tensor) -> Tensor:
    """[N, G, GROUP]; a last group that is not full repeats its first input, so that its scale is
    that of its own inputs."""
    rest = -weight_NK.shape[1] % GROUP
    if rest:
        begin = weight_NK.shape[1] // GROUP * GROUP
        padding = weight_NK[:, begin : begin + 1].expand(-1, rest)
        weight_NK = torch.cat([weight_NK, padding], 1)
    return weight_NK.unflatten(1, (-1, GROUP))


def int4_scales(groups_NGI: Tensor) -> tuple[Tensor, Tensor]:
    """bfloat16 scale and offset [N, G]: -8 is the smallest number of a group, 7 its largest."""
    low, high = groups_NGI.aminmax(dim=-1)
    scale = ((high - low) / 15).clamp(min=TINY).bfloat16()
    return scale, (low + 8 * scale.float()).bfloat16()


def nearest_int4(groups_NGI: Tensor, scale_NG: Tensor, offset_NG: Tensor) -> Tensor:
    """int8 numbers from -8 to 7."""
    scale, offset = scale_NG.float()[..., None], offset_NG.float()[..., None]
    return ((groups_NGI - offset) / scale).round_().clamp_(-8, 7).to(torch.int8)


def pack(numbers_NGI: Tensor) -> Tensor:
    """int8 [N, G, GROUP] of -8 to 7 → bytes [N, G * GROUP / 2]."""
    low, high = (numbers_NGI + 8).to(torch.uint8).chunk(2, -1)
    return (low | high << 4).flatten(1)


def unpack(bytes_NB: Tensor) -> Tensor:
    """The inverse of `pack`."""
    halves = bytes_NB.unflatten(1, (-1, GROUP // 2))
    return torch.cat([halves & 15, halves >> 4], -1).to(torch.int8) - 8

"""Writes blocks of numbers in few bytes: a scale of four, and 1 or 8 bits for each number.

| codec | a number is | scale of a block | bytes of a block of 1,024 |
|---|---|---|---|
| signs | plus or minus the scale | mean of the magnitudes, which is nearest in squares | 132 |
| int8 | an integer from -127 to 127, times the scale | largest magnitude / 127 | 1,028 |
| fp8 | a float of 4 and 3 bits (E4M3), times the scale | largest magnitude / 448 | 1,028 |

Signs are scaled by the mean magnitude, not by the root mean square: where a block has few large
numbers, that would lose more than sending zeros. All three keep a block of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from llm_core.parallel.compression.blocks import BLOCK, SCALE_BYTES


# N blocks · B numbers of a block · C bytes of a block
class Codec(Protocol):
    block_bytes: int

    def encode(self, x_NB: Tensor) -> Tensor:
        """The bytes_NC of blocks; uint8."""

    def decode(self, bytes_NC: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers_NB that bytes stand for."""


class Signs:
    block_bytes = BLOCK // 8 + SCALE_BYTES

    def encode(self, x_NB: Tensor) -> Tensor:
        scale_N = x_NB.abs().mean(dim=1)
        bits = (x_NB >= 0).to(torch.uint8).unflatten(1, (-1, 8))
        packed = (bits << _places(x_NB.device)).sum(dim=2, dtype=torch.uint8)
        return _joined(scale_N, packed)

    def decode(self, bytes_NC: Tensor, dtype: torch.dtype) -> Tensor:
        scale_N1, packed = _parted(bytes_NC, dtype)
        bits = (packed[:, :, None] >> _places(packed.device)) & 1
        return (bits.flatten(1).to(dtype) * 2 - 1) * scale_N1


@dataclass(frozen=True)
class EightBits:
    """One-byte numbers with magnitudes up to `largest`."""

    dtype: torch.dtype
    largest: float
    block_bytes = BLOCK + SCALE_BYTES

    def encode(self, x_NB: Tensor) -> Tensor:
        scale_N = x_NB.abs().amax(dim=1) / self.largest
        # Divide by the float32 scale that receivers multiply by.
        exact_N1 = scale_N.float().to(x_NB.dtype)[:, None]
        ratio = torch.where(exact_N1 > 0, x_NB / exact_N1, 0).clamp(-self.largest, self.largest)
        rounded = ratio.round() if not self.dtype.is_floating_point else ratio.float()
        return _joined(scale_N, rounded.to(self.dtype).view(torch.uint8))

    def decode(self, bytes_NC: Tensor, dtype: torch.dtype) -> Tensor:
        scale_N1, rounded = _parted(bytes_NC, dtype)
        return rounded.contiguous().view(self.dtype).to(dtype) * scale_N1


SIGNS = Signs()
INT8 = EightBits(torch.int8, 127.0)
FP8 = EightBits(torch.float8_e4m3fn, 448.0)


def _joined(scale_N: Tensor, body: Tensor) -> Tensor:
    return torch.cat([scale_N.float()[:, None].view(torch.uint8), body], dim=1)


def _parted(bytes_NC: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale_N1 = bytes_NC[:, :SCALE_BYTES].contiguous().view(torch.float32).to(dtype)
    return scale_N1, bytes_NC[:, SCALE_BYTES:]


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)

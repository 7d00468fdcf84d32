"""Rounds tensors to 8 bits by torch's operations, with a scale for each tensor.

`llm_core.kernels.float8_triton` does the same in one pass, for the products of
`llm_core.model.float8`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
"""4 bits of exponent and 3 of fraction; 5 and 2, for the wider range of gradients."""
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
_FRACTION = 0x7FFFFF
"""Bits of a float32 below its exponent."""


Rounded = tuple[Tensor, Tensor, Tensor]
"""Numbers [I, J] in 8 bits, the same as [J, I], and the scale to multiply them by."""


class Quantize(Protocol):
    def __call__(self, x: Tensor, dtype: torch.dtype, largest: Tensor | None = None) -> Rounded:
        """largest: the largest magnitude in x [I, J]; None: x is read to find it."""


def scale_for(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """The least power of two that brings magnitudes up to `largest`, divided by it, into the dtype.

    So a product with its inverse is the quotient to the last bit, at a fraction of the cost. What
    is given away, at most half of the range, costs no fraction bits: numbers of 8 bits float.
    """
    exact = (largest.float() / torch.finfo(dtype).max).clamp(min=SMALLEST_SCALE)
    # Any fraction carries into the exponent, and is then cut off.
    power = ((exact.view(torch.int32) + _FRACTION) & ~_FRACTION).view(torch.float32)
    return torch.where(exact.isnan(), exact, power)


def quantize(x: Tensor, dtype: torch.dtype, largest: Tensor | None = None) -> Rounded:
    """(x8, its transpose, scale), x ≈ x8 * scale. What is not a number stays so."""
    most = torch.finfo(dtype).max
    scale = scale_for(x.abs().amax() if largest is None else largest, dtype)
    x8 = (x.float() * (1 / scale)).clamp(-most, most).to(dtype)
    return x8, x8.t().contiguous(), scale

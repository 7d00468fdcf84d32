"""Random numbers by counting: the number of a token is a function of (seed, choice, step) alone.

So a request draws the same numbers whoever shares its batch, in whatever pass its token is made,
and after it was interrupted; and a batch draws on its device without a generator per row. The
counter is mixed twice by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in which every
input bit reaches every output bit. Not for secrets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# B rows

_GOLDEN = -0x61C8864680B583EB
"""2^64 divided by the golden ratio, as a signed number: successive multiples are far apart."""
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_FRACTION_BITS = 52
"""One less than a double has, so that the largest number times a sum is below that sum."""


def uniforms(seeds_B: Tensor, choices_B: Tensor, steps_B: Tensor) -> Tensor:
    """uniform_B, float64 from 0 to below 1, of int64 seeds, choices and steps on one device."""
    columns = seeds_B, choices_B, steps_B
    if seeds_B.device.type == "cpu":  # NumPy starts its operations in a third of the time
        whole_B = torch.from_numpy(_whole_numbers(*(column_B.numpy() for column_B in columns)))
    else:
        whole_B = _whole_numbers(*columns)
    return whole_B.double() * 2.0**-_FRACTION_BITS


def _whole_numbers(seeds_B: Any, choices_B: Any, steps_B: Any) -> Any:
    """int64 below 2^52, of tensors or of arrays."""
    mixed_B = _mix(seeds_B + _GOLDEN)
    mixed_B = _mix(mixed_B + choices_B * _GOLDEN)
    mixed_B = _mix(mixed_B + (steps_B + 1) * _GOLDEN)
    return _shifted(mixed_B, 64 - _FRACTION_BITS)


def _mix(number_B: Any) -> Any:
    number_B = (number_B ^ _shifted(number_B, 30)) * _FIRST
    number_B = (number_B ^ _shifted(number_B, 27)) * _SECOND
    return number_B ^ _shifted(number_B, 31)


def _shifted(number_B: Any, bits: int) -> Any:
    # Neither library shifts as if unsigned: the copies of the sign go by the mask.
    return (number_B >> bits) & ((1 << (64 - bits)) - 1)

"""Stores the numbers of a cache as they are, or with 8 bits each and one scale per token and head.

A vector of a head is divided by its largest magnitude / 127 and rounded to the nearest integer, so
no number is off by more than half a scale. Keys are stored after rotation. Attention reads them
multiplied out again, in the dtype of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from llm_core.infer.cache.attention import attend_keys
from llm_core.model.config import ModelConfig

# D width of a head, the last dimension; a scale has a last dimension of 1

MAX_CODE = 127


class Numbers:
    """Vectors of one shape in memory; places are indices of all dimensions but the last."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
        int8: bool = False,
    ) -> None:
        self.dtype = dtype
        # Zeros, not empty memory: a NaN left in a masked place would survive its weight of zero.
        self.stored = torch.zeros(*shape, dtype=torch.int8 if int8 else dtype, device=device)
        self.scales: Tensor | None = None
        if int8:
            self.scales = torch.zeros(*shape[:-1], 1, dtype=torch.float32, device=device)

    @property
    def num_bytes(self) -> int:
        return self.stored.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def write(self, place: Any, new: Tensor) -> None:
        if self.scales is None:
            self.stored[place] = new
        else:
            self.stored[place], self.scales[place] = to_int8(new)

    def write_slots(self, layer: int, slots_N: Tensor, new_NGD: Tensor) -> None:
        """Write in places counted over the two dimensions behind the layer."""
        codes, scales = (new_NGD, None) if self.scales is None else to_int8(new_NGD)
        for stored, values in ((self.stored, codes), (self.scales, scales)):
            if stored is not None and values is not None:
                stored[layer].flatten(0, 1).index_copy_(0, slots_N, values.to(stored.dtype))

    def copy(self, dim: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Overwrite the entries `targets` of a dimension by its entries `sources`."""
        device = self.stored.device
        source, target = (torch.tensor(list(i), device=device) for i in (sources, targets))
        for stored in (self.stored, self.scales):
            if stored is not None:
                stored.index_copy_(dim, target, stored.index_select(dim, source))

    def read(self, place: Any) -> Tensor:
        """A view of what is stored as it is; a copy of what is multiplied out."""
        if self.scales is None:
            return cast(Tensor, self.stored[place])
        return from_int8(self.stored[place], self.scales[place], self.dtype)

    def read_blocks(self, layer: int, blocks: Tensor) -> Tensor:
        """Some blocks, copied together: [blocks, …]."""
        # index_select: a fifth of the time that indexing takes on a CPU.
        codes = self.stored[layer].index_select(0, blocks)
        if self.scales is None:
            return codes
        return from_int8(codes, self.scales[layer].index_select(0, blocks), self.dtype)

    def take(self, dim: int, indices: Sequence[int]) -> Numbers:
        """A copy of some of it."""
        twin = Numbers.__new__(Numbers)
        index = torch.tensor(list(indices), device=self.stored.device)
        twin.dtype, twin.stored = self.dtype, self.stored.index_select(dim, index)
        twin.scales = None if self.scales is None else self.scales.index_select(dim, index)
        return twin


def to_int8(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 codes, float32 scales)."""
    numbers = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
    scales = (numbers.abs().amax(-1, keepdim=True) / MAX_CODE).float()
    # A vector of zeros has no scale, and any gives it back.
    codes = (numbers / scales.clamp(min=torch.finfo(torch.float32).tiny).to(numbers.dtype)).round()
    return codes.clamp(-MAX_CODE, MAX_CODE).to(torch.int8), scales


def from_int8(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return codes.to(dtype) * scales.to(dtype)


class RoundedKeys:
    """Keeps nothing, and attends to keys and values that were rounded to 8 bits and back: what a
    cache in 8 bits is held against."""

    def __init__(self, config: ModelConfig, *place: object, int8: bool = True) -> None:
        """place: what other kinds of caches are made with, and one that keeps nothing needs not."""
        self.config, self.patterns = config, config.patterns

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        k_BGTD, v_BGTD = (from_int8(*to_int8(x), x.dtype) for x in (k_BGTD, v_BGTD))
        return attend_keys(q_BHTD, k_BGTD, v_BGTD, self.patterns[layer])

"""Sends the numbers of several tensors to the device in one copy.

A copy of a few bytes takes as long as one of some thousand, and a step needs a dozen tensors. They
lie one behind the other: on the host in pinned memory, where NumPy writes them, and on the device,
where they keep their addresses, so captured graphs may read them. On a CPU both are one memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNED_BYTES = 16


class Parcel:
    """Tensors of fixed shapes with one address for writing and one for reading."""

    def __init__(
        self, fields: Mapping[str, tuple[Sequence[int], torch.dtype]], device: torch.device
    ) -> None:
        """fields: shape and dtype of each, all zeros at first."""
        begins, end = {}, 0
        for name, (shape, dtype) in fields.items():
            begins[name] = end
            size = int(np.prod(shape)) * dtype.itemsize
            end += -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
        self._there = torch.zeros(end, dtype=torch.uint8, device=device)
        on_host = device.type == "cpu"
        self._here = (
            self._there if on_host else torch.zeros(end, dtype=torch.uint8, pin_memory=True)
        )

        def views(whole: Tensor) -> dict[str, Tensor]:
            return {
                name: whole[begins[name] :][: int(np.prod(shape)) * dtype.itemsize]
                .view(dtype)
                .view(*shape)
                for name, (shape, dtype) in fields.items()
            }

        self.there = views(self._there)
        """On the device."""
        self.here: dict[str, np.ndarray[Any, Any]] = {
            name: view.numpy() for name, view in views(self._here).items()
        }
        """On the host; not to be written while a copy is under way."""

    def send(self) -> None:
        if self._here is not self._there:
            self._there.copy_(self._here, non_blocking=True)

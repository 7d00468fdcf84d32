"""Layers over rounded weights, in place of those of torch in a loaded model. They compute; they are
not trained.

What multiplies follows from x: float64 by the restored weight, the reference; on a CPU
`llm_core.quantize.on_cpu`; on a GPU kernels in Triton (`llm_core.kernels.quantized_triton`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from llm_core.quantize import on_cpu
from llm_core.quantize.formats import Rounded

# M rows of x · N outputs · K inputs


class RoundedLinear(nn.Module):
    """A linear layer by `stored`, which moves between devices and is never cast."""

    def __init__(self, stored: Rounded, bias: Tensor | None = None) -> None:
        super().__init__()
        self.held: Rounded | on_cpu.Ordered = stored
        self.in_features, self.out_features = stored.num_inputs, len(stored.numbers)
        self.format = stored.format
        self.register_parameter(
            "bias", None if bias is None else nn.Parameter(bias, requires_grad=False)
        )

    @property
    def stored(self) -> Rounded:
        """The weight as it is saved."""
        return self.held if isinstance(self.held, Rounded) else self.held.rounded()

    @property
    def num_bytes(self) -> int:
        """Of weight and bias, as they are held now."""
        return self.held.num_bytes + (0 if self.bias is None else self.bias.nbytes)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        # What is ordered lies on the CPU.
        scale = self.held.scale if isinstance(self.held, Rounded) else torch.empty(0)
        here, there = scale.device, fn(torch.empty(0, device=scale.device)).device
        if here != there:
            self.held = self.stored.to(there)
        return moved

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] → [..., N] in x's dtype."""
        y_MN = self._product(x.reshape(-1, self.in_features))
        if self.bias is not None:
            y_MN += self.bias
        return y_MN.view(*x.shape[:-1], self.out_features)

    def _product(self, x_MK: Tensor) -> Tensor:
        if x_MK.dtype == torch.float64:
            return on_cpu.restored_product(x_MK, self.stored)
        if isinstance(self.held, Rounded):
            if x_MK.device.type == "cuda":
                from llm_core.kernels.quantized_triton import product

                return product(x_MK, self.held)
            ordered = on_cpu.order(self.held)
            if ordered is None:
                return on_cpu.restored_product(x_MK, self.held)
            self.held = ordered
        return self.held.product(x_MK)


class RoundedEmbedding(nn.Module):
    """Rows of a table, which a tied head is too; not in int4, whose scales are not those of rows.

    Rows stay in the order of the file also where the head orders its own copy.
    """

    def __init__(self, table: RoundedLinear, dtype: torch.dtype) -> None:
        """dtype: of the rows that come out."""
        super().__init__()
        assert table.format != "int4"
        self.table, self.rows, self.dtype = table, table.stored, dtype

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        moved = super()._apply(fn, recurse)
        self.rows = self.table.stored
        return moved

    @property
    def num_bytes(self) -> int:
        """Of rows beyond those of the table."""
        return 0 if self.rows is self.table.held else self.rows.num_bytes

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] → rows [..., K]."""
        return self.rows.numbers[ids].to(self.dtype) * self.rows.scale[ids, None].to(self.dtype)

"""silu(gate) * up, by torch operation by operation; `llm_core.model.operations` has kernels of our
own in its place."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

Gated = Callable[[Tensor, int], Tensor]
"""(gate_up [..., 2F], channels of a block) → [..., F]; channels of gate and up stand in blocks
(llm_core.model.fused)."""


def gated(gate_up: Tensor, block: int) -> Tensor:
    gate, up = gate_up.unflatten(-1, (-1, 2, block)).unbind(-2)
    # Kernels of CPUs take more channels at once than a small block has, and go one by one through
    # what is left. Where blocks are wide this costs a pass over memory, and the copy is kept for
    # backward.
    gate = gate.contiguous() if gate.device.type == "cpu" else gate
    return (F.silu(gate) * up).flatten(-2)

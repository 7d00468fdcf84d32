"""Describes what this process holds of the model, and where the rest is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from llm_core.memory.resting import RestingWeights
from llm_core.model.transformer import Transformer
from llm_core.parallel.compression.reduction import Reduction
from llm_core.parallel.config import Kind
from llm_core.parallel.grid.shards import GridShards
from llm_core.parallel.pipelining.pipeline import Pipeline
from llm_core.parallel.sequence.context import Context
from llm_core.parallel.servers.shares import Servers
from llm_core.parallel.tensor import TensorShards


@dataclass(frozen=True)
class Layout:
    """The model of this process, and where the rest of layers, tokens and weights is."""

    model: nn.Module
    pipeline: Pipeline | None = None
    context: Context | None = None
    tensor: TensorShards | GridShards | None = None
    mesh: DeviceMesh | None = None
    """Processes by weights (`Ranks.weights`); None: one process."""
    kind: Kind = "none"
    """What data-parallel processes share (`ParallelConfig.kind`)."""
    reduction: Reduction | None = None
    """How gradients are summed in fewer bytes; None: they are summed as they are."""
    resting: RestingWeights | None = None
    """Shards of weights on a disk; None: they are in memory."""
    expert_copies: dist.ProcessGroup | None = None
    """Processes that hold the same experts and must sum their gradients; None: no others do, or
    FSDP sums them."""
    servers: Servers | None = None
    """Which process updates which weight; None: none has weights of its own to update."""
    counts: dict[str, Tensor] = field(default_factory=dict)
    """What checkpoints hold besides weights and the optimizer's state, the same on all processes,
    by name."""

    @property
    def device(self) -> torch.device:
        """Where this process computes; its weights may rest elsewhere."""
        if self.mesh is None:
            return next(self.model.parameters()).device
        return torch.device(self.mesh.device_type)

    @property
    def bare(self) -> Transformer:
        """The transformer inside; its parameter names do not depend on the layout."""
        return bare(self.model)


def bare(model: nn.Module) -> Transformer:
    return cast(Transformer, model.module if isinstance(model, DistributedDataParallel) else model)

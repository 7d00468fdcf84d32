"""Names of torch that differ between the versions we run on (2.11 to 2.13), each taken by a feature test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, placement_types
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""(out, x, group=): x of all processes along the first dimension; renamed in 2.13."""

reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""(out, x, group=): this process's piece of the sum; renamed in 2.13."""

StridedShard: Callable[..., Any] = placement_types._StridedShard
"""(dim, split_factor=): rows that are shared among processes after they were cut before, as by FSDP over tensor parallelism."""

fused_adamw: Callable[..., None] = torch._fused_adamw_
"""What torch.optim.AdamW(fused=True) calls with lists of tensors; it has no public name."""


foreach_norm: Callable[..., Sequence[Tensor]] = torch._foreach_norm
"""(tensors) → the 2-norm of each; what torch.nn.utils.get_total_norm calls on GPUs. It has no public name."""

flash_forward: Callable[..., Any] | None = getattr(torch.ops.aten, "_flash_attention_forward", None)
"""(q_BQHD, k_BKGD, v_BKGD, None, None, Q, K, 0.0, is_causal, False) → (mixed_BQHD, lse_BHQ, …); what varlen_attn calls. No public
name gives the lse of dense rows."""

flash_backward: Callable[..., Any] | None = getattr(torch.ops.aten, "_flash_attention_backward", None)
"""(grad, q, k, v, mixed, lse_BHQ, None, None, Q, K, 0.0, is_causal, two states of a generator) → gradients of q, k and v."""


def pin(tensor: Tensor) -> None:
    """Let GPUs copy from and to memory of this process beside other work. Raises RuntimeError where the driver refuses."""
    error = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if error:
        raise RuntimeError(f"cudaHostRegister of {tensor.nbytes} bytes: error {error}")


def unpin(address: int) -> None:
    """Undo `pin` of a tensor at this address."""
    torch.cuda.cudart().cudaHostUnregister(address)


def dtensor_of(piece: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: torch.Size) -> DTensor:
    """Like DTensor.from_local without gradients, but a piece in main memory stays there when the mesh is one of GPUs."""
    stride = torch.empty(shape, device="meta").stride()
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(shape, stride, piece.dtype))
    made: DTensor = DTensor(piece, spec, requires_grad=False)
    return made


def keeps_graph() -> bool:
    """Inside a backward pass: whether its graph will be gone through again. True where torch does not tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


class PipelineStage(pipelining.PipelineStage):
    """A stage whose neighbour may be on the same process, as at the bend of a V: torch 2.11 opens with a send to itself there,
    which gloo cannot."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.peer != dist.get_rank()]

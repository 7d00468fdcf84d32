"""Names of torch that differ between versions 2.11 to 2.13, each taken by a feature test."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d, pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam as FSDPParam
from torch.distributed.tensor import DTensor, Placement, placement_types
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.nn.parallel import DistributedDataParallel

all_gather_single: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
"""(out, x, group=): x of all processes along the first dimension; renamed in 2.13."""

reduce_scatter_single: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
"""(out, x, group=): this process's piece of the sum; renamed in 2.13."""

NO_BUFFER_SYNC: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}
"""For DistributedDataParallel: buffers are not sent before each forward; renamed in 2.13."""

StridedShard: Callable[..., Any] = placement_types._StridedShard
"""(dim, split_factor=): shares rows that were cut before, as by FSDP over tensor parallelism."""

fused_adamw: Callable[..., None] = torch._fused_adamw_
"""What torch.optim.AdamW(fused=True) calls with lists of tensors; it has no public name."""

scaled_product: Callable[..., Tensor] = torch._scaled_mm
"""(a8_IK, b8_KJ, scale_a, scale_b, out_dtype=, use_fast_accum=); the public
torch.nn.functional.scaled_mm breaks compiled graphs in 2.11."""

int4_order: Callable[[Tensor, int], Tensor] = torch._convert_weight_to_int4pack_for_cpu
"""(numbers_NK int32 of 0 to 15, 1) → bytes in the order of `int4_product`; not public, as that, but
what torchao calls."""

int4_product: Callable[[Tensor, Tensor, int, Tensor], Tensor] = torch._weight_int4pack_mm_for_cpu
"""(x_MK bfloat16, ordered bytes, inputs of a group, scale and offset [G, N, 2]) → x weightᵀ, where
a weight is (number - 8) * scale + offset."""

_grouped_mm: Callable[..., Tensor] = (
    getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
)


def grouped_mm(x_PI: Tensor, matrices_EIO: Tensor, ends_E: Tensor) -> Tensor:
    """Runs of rows, each times its own matrix; ends_E: int32, where each run ends. Rows after the
    last run are not written."""
    return _grouped_mm(x_PI, matrices_EIO, offs=ends_E)


foreach_norm: Callable[..., Sequence[Tensor]] = torch._foreach_norm
"""(tensors, dtype=) → the 2-norm of each, as torch.nn.utils.get_total_norm calls it; not public."""

flash_forward: Callable[..., Any] | None = getattr(torch.ops.aten, "_flash_attention_forward", None)
"""(q_BQHD, k_BKGD, v_BKGD, None, None, Q, K, 0.0, is_causal, False) → (mixed_BQHD, lse_BHQ, …);
what varlen_attn calls. No public name gives the lse of dense rows."""

flash_backward: Callable[..., Any] | None = getattr(
    torch.ops.aten, "_flash_attention_backward", None
)
"""(grad, q, k, v, mixed, lse_BHQ, None, None, Q, K, 0.0, is_causal, state, state) → dq, dk, dv."""


_fbgemm = getattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32", None)
# Without the wrapper in Python, which searches every argument of every call for stand-ins.
fbgemm_product: Callable[..., Tensor] | None = getattr(_fbgemm, "_op", _fbgemm)
"""(x_MK float32, scale of x, number that stands for its zero, packed) → x weightᵀ in float32; the
one operation that rounds x by a given scale. torch announces the end of this namespace."""


def fbgemm_order(numbers_NK: Tensor, scale_N: Tensor) -> Any:
    """numbers int8, scale float32 → packed for `fbgemm_product`; has it where that is there."""
    # Another engine may choose oneDNN, whose packed weights this product does not take.
    engine, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*quantized tensor creation functions")
            return _packed(numbers_NK, scale_N)
    finally:
        torch.backends.quantized.engine = engine


def _packed(numbers_NK: Tensor, scale_N: Tensor) -> Any:
    zeros_N = torch.zeros(len(scale_N), dtype=torch.long)
    # Private: the public function rounds floats, and would have to be given them.
    weight = torch._make_per_channel_quantized_tensor(numbers_NK, scale_N.double(), zeros_N, 0)
    return torch.ops.quantized.linear_prepack(weight, None)


def fbgemm_stored(packed: Any) -> tuple[Tensor, Tensor]:
    """(numbers_NK, scale_N) of what was packed."""
    weight, _ = torch.ops.quantized.linear_unpack(packed)
    return weight.int_repr(), weight.q_per_channel_scales().float()


def pin(tensor: Tensor) -> None:
    """Let GPUs copy from and to this memory during other work. Raises RuntimeError if refused."""
    error = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if error:
        raise RuntimeError(f"cudaHostRegister of {tensor.nbytes} bytes: error {error}")


def unpin(address: int) -> None:
    """Undo `pin` of a tensor at this address."""
    torch.cuda.cudart().cudaHostUnregister(address)


def dtensor_of(
    piece: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: torch.Size
) -> DTensor:
    """DTensor.from_local without gradients; a piece in main memory stays there on GPU meshes."""
    stride = torch.empty(shape, device="meta").stride()
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(shape, stride, piece.dtype))
    made: DTensor = DTensor(piece, spec, requires_grad=False)
    return made


def fsdp_params(unit: FSDPModule) -> list[FSDPParam]:
    """What FSDP gathers together for a module; it has no public name."""
    group = unit._get_fsdp_state()._fsdp_param_group
    return [] if group is None else list(group.fsdp_params)


def flight_records() -> str | None:
    """JSON of what torch's flight recorder has of this process, NCCL's where it has one; None where
    this torch has neither in JSON."""
    bindings = importlib.import_module("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        if dump := getattr(bindings, name, None):
            found = dump()
            text: str = found.decode() if isinstance(found, bytes) else found
            if json.loads(text).get("entries") or name == "_dump_fr_trace_json":
                return text
    return None


def default_store() -> dist.Store:
    """The store of addresses of the default process group; it has no public name."""
    found: dist.Store = distributed_c10d._get_default_store()
    return found


def process_group_of(name: str) -> dist.ProcessGroup:
    """This process's group of this name, for operations of torch that take a name."""
    found: dist.ProcessGroup = distributed_c10d._resolve_process_group(name)
    return found


@functools.cache
def symmetric_products() -> (
    tuple[Callable[..., tuple[Tensor, list[Tensor]]], Callable[..., Tensor]] | None
):
    """Products over memory that the GPUs of a group read from each other; None where this torch has
    none.

    (x, [weights], dim, name of the group) → (x of all processes along dim, [its products]); (x,
    weight, "sum", dim, name of the group) → this process's piece along dim of the sum of the
    products.
    """
    if importlib.util.find_spec("torch.distributed._symmetric_memory") is not None:
        importlib.import_module(
            "torch.distributed._symmetric_memory"
        )  # which registers the operations
    gather_product = getattr(torch.ops.symm_mem, "fused_all_gather_matmul", None)
    product_sum = getattr(torch.ops.symm_mem, "fused_matmul_reduce_scatter", None)
    return (gather_product, product_sum) if gather_product and product_sum else None


def needed_now(ctx: Any) -> tuple[bool, ...]:
    """In the backward of an autograd.Function: which of its inputs, tensors first, get a gradient
    in this pass.

    `ctx.needs_input_grad` says which ever do, but schedules that take gradients of inputs and of
    weights apart make two passes. None may be a leaf, of which torch does not tell. All where torch
    tells of none.
    """
    ask = getattr(torch._C, "_will_engine_execute_node", None)
    return tuple(
        needs and (ask is None or bool(ask(node)))
        for needs, (node, _) in zip(ctx.needs_input_grad, ctx.next_functions, strict=False)
    )


def keeps_graph() -> bool:
    """Inside a backward pass: whether its graph is kept for another. True where torch is silent."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


class PipelineStage(pipelining.PipelineStage):
    """A stage whose neighbour may be on the same process, as at the bend of a V: torch 2.11 opens
    with a send to itself there, which gloo cannot."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.peer != dist.get_rank()]

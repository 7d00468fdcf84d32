"""Sorts operators (on a CPU) and kernels (on a GPU) into kinds of work, by their names.

Kernels have the names that their libraries gave them, so these are lists of what is in use: cuBLAS
and cuBLASLt (`gemm`, `nvjet`, `xmma`), CUTLASS, Triton as torch.compile names it (`triton_poi`,
`_red`, `_per`: elementwise and reductions; `_tem`: templates of products), FlashAttention, cuDNN,
NCCL. What no list knows is `other`, and is shown with its name.
"""

from __future__ import annotations

import re

MATMUL, ATTENTION, ELEMENTWISE, OPTIMIZER = "matmul", "attention", "elementwise", "optimizer"
COPIES, OTHER, COMMUNICATION, IDLE = "copies", "other", "communication", "idle"
KINDS = (MATMUL, ATTENTION, ELEMENTWISE, OPTIMIZER, COPIES, OTHER, COMMUNICATION, IDLE)
"""A moment counts for the first kind that runs: communication only if nothing computes."""

OPTIMIZER_MARK = "optimizer"
"""Name of the range in a trace within which all work is the optimizer's."""

# The first that fits: attention is also built of gemms, and communication also reduces.
_KERNELS = [
    (
        COMMUNICATION,
        r"nccl|multimem|symm_mem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|p2p_",
    ),
    (ATTENTION, r"flash|fmha|sdpa|flex_attention|attention"),
    (
        MATMUL,
        r"gemm|nvjet|xmma|cutlass|cublas|gemv|splitk|triton_tem|triton_mm|_mm_|dot_kernel|matmul",
    ),
    (COPIES, r"memcpy|memset|copy_kernel|catarray|transpose"),
    (
        ELEMENTWISE,
        r"elementwise|reduce|norm|softmax|triton|multi_tensor|foreach|vectorized|index|embedding|gather|scatter|scan|cumsum|cat_|sort"
        r"|fill|arange|fused_adam|swiglu|split_(for|back)ward|quantize",
    ),
]
_OPERATORS = [
    (COMMUNICATION, r"^(c10d|_c10d_functional|gloo|nccl)[:]"),
    (ATTENTION, r"attention|flash|sdpa"),
    (
        MATMUL,
        r"::(mm|_scaled_mm|addmm|bmm|baddbmm|matmul|linear|mkldnn_linear|_addmm_activation|addmv|mv|dot|einsum)(_out)?$|gemm",
    ),
    (
        COPIES,
        r"::(copy_|_to_copy|to|clone|contiguous|cat|stack|pin_memory|_foreach_copy_|split_with_sizes_copy)$",
    ),
    (ELEMENTWISE, r"^(aten|torch|torchvision|triton|inductor|llm_core)::"),
]


def kind_of_kernel(name: str) -> str:
    return _first(name, _KERNELS)


def kind_of_operator(name: str) -> str:
    return _first(name, _OPERATORS)


def _first(name: str, rules: list[tuple[str, str]]) -> str:
    return next((kind for kind, pattern in rules if re.search(pattern, name, re.IGNORECASE)), OTHER)

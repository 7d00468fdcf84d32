"""Restores the numbers of NF4 codes in one Triton pass, which reads half a byte for each number.

Computes what `llm_core.model.nf4` does in torch, where each of five operations is a pass over
float32 copies. Needs the package triton; `TRITON_INTERPRET=1` runs it on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, GROUP = 64, 256
"""Numbers that share a scale, and scales that share one."""
BLOCKS = 32
"""Blocks that a program of four warps restores: eight bytes a thread."""


@triton.jit
def restore_codes(  # type: ignore[no-untyped-def]
    codes, absmax, groups, first, values, steps, out, num_blocks, per_row,
    BLOCKS: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    there = block < num_blocks
    place = tl.load(first + block // per_row, mask=there, other=0) + block % per_row
    group = 2 * (place // GROUP)
    scale = tl.load(steps + tl.load(absmax + block, mask=there, other=0).to(tl.int32))
    scale = scale * tl.load(groups + group, mask=there, other=0)
    scale += tl.load(groups + group + 1, mask=there, other=0)
    byte_at = block[:, None] * HALF + tl.arange(0, HALF)[None, :]
    byte = tl.load(codes + byte_at, mask=there[:, None], other=0).to(tl.int32)
    high = tl.load(values + (byte >> 4)) * scale[:, None]
    low = tl.load(values + (byte & 15)) * scale[:, None]
    at = block[:, None] * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]
    both = tl.join(high, low).reshape(BLOCKS, 2 * HALF)
    tl.store(out + at, both.to(out.dtype.element_ty), mask=there[:, None])


def restore(
    codes_OI: Tensor,
    absmax_OK: Tensor,
    groups_G2: Tensor,
    first_O: Tensor,
    values: Tensor,
    steps: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """As `llm_core.model.nf4.restored`. values, steps: the numbers of 4-bit and of 8-bit codes."""
    rows, per_row = absmax_OK.shape
    out = torch.empty(rows, per_row * BLOCK, dtype=dtype, device=codes_OI.device)
    num_blocks = rows * per_row
    grid = (triton.cdiv(num_blocks, BLOCKS),)
    restore_codes[grid](
        codes_OI, absmax_OK, groups_G2, first_O, values, steps, out, num_blocks, per_row,
        BLOCKS=BLOCKS, HALF=BLOCK // 2, GROUP=GROUP,
    )  # fmt: skip
    return out

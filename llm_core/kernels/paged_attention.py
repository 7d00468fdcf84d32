"""Attends one new token per sequence over the blocks of a paged cache, in one Triton kernel that
also stores the token's key and value.

Query heads that share a key head are one tile, so keys are read once (Ainslie et al., 2023). The
tokens of a sequence are split over programs, and the last to end joins what they found (split-K:
Dao et al., 2023), so that few sequences fill a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# B sequences · H query heads · G key/value heads · R query heads of one · D width of a head
# M blocks of a sequence at most

TILE_TOKENS = 64
"""Tokens of a step through the cache."""
MAX_SPLITS = 16
PROGRAMS_EACH = 4
MIN_HEADS = 16
"""Rows of the smallest product of tensor cores."""


@triton.jit
def attend_blocks(  # type: ignore[no-untyped-def]
    q, k, v, keys, values, tables, lengths, mixed, parts, marks, joined,
    scale, q_stride, kv_stride, table_stride, window,
    G: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    sequence, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    head, channel, token = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, TILE)
    is_head = head < R
    before = tl.load(lengths + sequence)
    table = tables + sequence * table_stride
    q_RD = tl.load(
        q + sequence * q_stride + (group * R + head[:, None]) * D + channel[None, :],
        mask=is_head[:, None], other=0.0,
    )  # fmt: skip
    start = tl.maximum(before + 1 - window, 0) if window > 0 else 0
    tiles = (before - start + TILE - 1) // TILE
    each = (tiles + SPLITS - 1) // SPLITS
    first = start + split * each * TILE
    last = tl.minimum(first + each * TILE, before)
    most_R = tl.full((ROWS,), -1e30, tl.float32)
    total_R = tl.zeros((ROWS,), tl.float32)
    sum_RD = tl.zeros((ROWS, D), tl.float32)
    if split == 0:
        new_k = tl.load(k + sequence * kv_stride + group * D + channel)
        new_v = tl.load(v + sequence * kv_stride + group * D + channel)
        slot = tl.load(table + before // BLOCK_TOKENS).to(tl.int64) * BLOCK_TOKENS
        place = ((slot + before % BLOCK_TOKENS) * G + group) * D + channel
        tl.store(keys + place, new_k.to(keys.dtype.element_ty))
        tl.store(values + place, new_v.to(values.dtype.element_ty))
        most_R = tl.sum(q_RD.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale
        total_R = tl.full((ROWS,), 1.0, tl.float32)
        sum_RD += new_v.to(tl.float32)[None, :]
    for begin in tl.range(first, last, TILE):
        place_T = begin + token
        is_there = place_T < last
        block_T = tl.load(table + place_T // BLOCK_TOKENS, mask=is_there, other=0).to(tl.int64)
        row_T = ((block_T * BLOCK_TOKENS + place_T % BLOCK_TOKENS) * G + group) * D
        k_DT = tl.load(keys + row_T[None, :] + channel[:, None], mask=is_there[None, :], other=0.0)
        # Masked, not only weighted by zero: a place past the end may hold anything.
        v_TD = tl.load(
            values + row_T[:, None] + channel[None, :], mask=is_there[:, None], other=0.0
        )
        score_RT = tl.dot(q_RD.to(k_DT.dtype), k_DT, input_precision="ieee") * scale
        score_RT = tl.where(is_there[None, :], score_RT, -2e30)
        now_R = tl.maximum(most_R, tl.max(score_RT, 1))
        weight_RT = tl.exp(score_RT - now_R[:, None])
        keep_R = tl.exp(most_R - now_R)
        total_R = total_R * keep_R + tl.sum(weight_RT, 1)
        sum_RD = sum_RD * keep_R[:, None] + tl.dot(
            weight_RT.to(v_TD.dtype), v_TD, input_precision="ieee"
        )
        most_R = now_R
    out = mixed + (sequence * G + group) * R * D + head[:, None] * D + channel[None, :]
    if SPLITS == 1:
        tl.store(out, (sum_RD / total_R[:, None]).to(mixed.dtype.element_ty), mask=is_head[:, None])
    else:
        cell = (sequence * G + group) * SPLITS
        own = cell + split
        tl.store(parts + own * ROWS * D + head[:, None] * D + channel[None, :], sum_RD)
        tl.store(marks + own * 2 * ROWS + head, most_R)
        tl.store(marks + own * 2 * ROWS + ROWS + head, total_R)
        tl.debug_barrier()
        arrived = tl.atomic_add(joined + sequence * G + group, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            tl.store(joined + sequence * G + group, 0)
            most_R = tl.full((ROWS,), -1e30, tl.float32)
            total_R = tl.zeros((ROWS,), tl.float32)
            sum_RD = tl.zeros((ROWS, D), tl.float32)
            for other in range(SPLITS):
                their = cell + other
                their_most_R = tl.load(marks + their * 2 * ROWS + head, volatile=True)
                their_total_R = tl.load(marks + their * 2 * ROWS + ROWS + head, volatile=True)
                their_sum_RD = tl.load(
                    parts + their * ROWS * D + head[:, None] * D + channel[None, :], volatile=True
                )
                now_R = tl.maximum(most_R, their_most_R)
                keep_R, add_R = tl.exp(most_R - now_R), tl.exp(their_most_R - now_R)
                total_R = total_R * keep_R + their_total_R * add_R
                sum_RD = sum_RD * keep_R[:, None] + their_sum_RD * add_R[:, None]
                most_R = now_R
            tl.store(
                out, (sum_RD / total_R[:, None]).to(mixed.dtype.element_ty), mask=is_head[:, None]
            )


class PagedAttention:
    """The kernel with its working memory, for batches of one size."""

    def __init__(
        self,
        batch: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
        splits: int = 0,
    ) -> None:
        """splits: programs that share a sequence; 0 gives each multiprocessor one."""
        self.rows = max(MIN_HEADS, triton.next_power_of_2(num_heads // num_kv_heads))
        cells = batch * num_kv_heads
        if not splits:
            processors = torch.cuda.get_device_properties(device).multi_processor_count
            # Several programs of a multiprocessor wait for memory together.
            splits = max(1, min(MAX_SPLITS, PROGRAMS_EACH * processors // cells))
        self.splits = splits
        shape = cells * self.splits * self.rows
        self._parts = torch.empty(shape * head_dim, dtype=torch.float32, device=device)
        self._marks = torch.empty(2 * shape, dtype=torch.float32, device=device)
        # Zeros between calls.
        self._joined = torch.zeros(cells, dtype=torch.int32, device=device)

    def __call__(
        self,
        q_BHD: Tensor,
        k_BGD: Tensor,
        v_BGD: Tensor,
        keys: Tensor,
        values: Tensor,
        tables_BM: Tensor,
        lengths_B: Tensor,
        window: int = 0,
    ) -> Tensor:
        """mixed_BHD. keys, values: [blocks, block_tokens, G, D] of a layer. lengths_B: tokens
        before the new ones. Heads lie one after another in q, k and v."""
        batch, heads, width = q_BHD.shape
        groups = k_BGD.shape[1]
        mixed_BHD = torch.empty(batch, heads, width, dtype=q_BHD.dtype, device=q_BHD.device)
        attend_blocks[(batch, groups, self.splits)](
            q_BHD, k_BGD, v_BGD, keys, values, tables_BM, lengths_B, mixed_BHD,
            self._parts, self._marks, self._joined,
            width**-0.5, q_BHD.stride(0), k_BGD.stride(0), tables_BM.stride(0), window,
            G=groups, R=heads // groups, ROWS=self.rows, D=width, BLOCK_TOKENS=keys.shape[1],
            TILE=TILE_TOKENS, SPLITS=self.splits,
        )  # fmt: skip
        return mixed_BHD

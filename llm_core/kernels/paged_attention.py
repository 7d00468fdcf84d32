"""Attends the new tokens of several sequences over the blocks of a paged cache, in one Triton
kernel that also stores their keys and values.

A program takes a tile: one or several new tokens of a sequence, with the query heads that share a
key head, so that keys are read once for all (Ainslie et al., 2023). Keys of earlier tokens come
from blocks, those of new ones from the model, so that no program waits for what another stores.
The keys of a sequence are split over programs, and the last to end joins what they found (split-K:
Dao et al., 2023), so that few sequences fill a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# B sequences · N new tokens of all · H query heads · G key/value heads · R query heads of one
# Q new tokens of a tile at most · D width of a head · M blocks of a sequence at most

TILE_TOKENS = 64
"""Tokens of a step through the cache."""
MAX_SPLITS = 16
PROGRAMS_EACH = 4
MIN_ROWS = 16
"""Rows of the smallest product of tensor cores."""


@triton.jit
def _see(q_RD, k_DT, v_TD, seen_RT, scale, most_R, total_R, sum_RD):  # type: ignore[no-untyped-def]
    """The running maximum, total and sum of softmax after some more keys."""
    score_RT = tl.dot(q_RD.to(k_DT.dtype), k_DT, input_precision="ieee") * scale
    score_RT = tl.where(seen_RT, score_RT, -2e30)
    now_R = tl.maximum(most_R, tl.max(score_RT, 1))
    weight_RT = tl.exp(score_RT - now_R[:, None])
    keep_R = tl.exp(most_R - now_R)
    total_R = total_R * keep_R + tl.sum(weight_RT, 1)
    sum_RD = sum_RD * keep_R[:, None] + tl.dot(
        weight_RT.to(v_TD.dtype), v_TD, input_precision="ieee"
    )
    return now_R, total_R, sum_RD


# Numbers that differ from pass to pass: a kernel for each kind of them would be compiled anew.
@triton.jit(do_not_specialize=["table_stride", "splits"])
def attend_blocks(  # type: ignore[no-untyped-def]
    q, k, v, keys, values, tables, lengths, tiles, mixed, parts, marks, joined,
    scale, q_stride, kv_stride, table_stride, window, splits,
    G: tl.constexpr, R: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    tile, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if TILED:
        first = tl.load(tiles + tile * 4)
        count = tl.load(tiles + tile * 4 + 1)
        origin = tl.load(tiles + tile * 4 + 2)
        sequence = tl.load(tiles + tile * 4 + 3)
    else:
        first, count, origin, sequence = tile, 1, tile, tile
    if count == 0:
        return
    row, channel, token = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, TILE)
    query_R = row // R
    is_row = query_R < count
    before = tl.load(lengths + origin)
    place = before + first - origin
    table = tables + sequence * table_stride
    head_R = group * R + row % R
    q_RD = tl.load(
        q + (first + query_R[:, None]) * q_stride + head_R[:, None] * D + channel[None, :],
        mask=is_row[:, None], other=0.0,
    )  # fmt: skip
    reach = tl.where(window > 0, window, 1 << 30)
    start = tl.maximum(place + 1 - reach, 0)
    steps = (tl.maximum(before - start, 0) + TILE - 1) // TILE
    each = (steps + splits - 1) // splits
    low = start + split * each * TILE
    high = tl.minimum(low + each * TILE, before)
    most_R = tl.full((ROWS,), -1e30, tl.float32)
    total_R = tl.zeros((ROWS,), tl.float32)
    sum_RD = tl.zeros((ROWS, D), tl.float32)
    if split == 0:
        own = tl.arange(0, QUERIES)
        is_own = own < count
        new = (first + own[:, None]) * kv_stride + group * D + channel[None, :]
        new_k = tl.load(k + new, mask=is_own[:, None], other=0.0)
        new_v = tl.load(v + new, mask=is_own[:, None], other=0.0)
        block = tl.load(table + (place + own) // BLOCK_TOKENS, mask=is_own, other=0).to(tl.int64)
        slot = block * BLOCK_TOKENS + (place + own) % BLOCK_TOKENS
        to = (slot[:, None] * G + group) * D + channel[None, :]
        tl.store(keys + to, new_k.to(keys.dtype.element_ty), mask=is_own[:, None])
        tl.store(values + to, new_v.to(values.dtype.element_ty), mask=is_own[:, None])
        if TILED:
            for begin in tl.range(tl.maximum(origin, first + 1 - reach), first + count, TILE):
                other_T = begin + token
                is_there = other_T < first + count
                at_T = other_T * kv_stride + group * D
                k_DT = tl.load(
                    k + at_T[None, :] + channel[:, None], mask=is_there[None, :], other=0.0
                )
                v_TD = tl.load(
                    v + at_T[:, None] + channel[None, :], mask=is_there[:, None], other=0.0
                )
                back_RT = first + query_R[:, None] - other_T[None, :]
                seen_RT = is_there[None, :] & (back_RT >= 0) & (back_RT < reach)
                most_R, total_R, sum_RD = _see(
                    q_RD, k_DT, v_TD, seen_RT, scale, most_R, total_R, sum_RD
                )
        else:
            most_R = tl.sum(q_RD.to(tl.float32) * new_k.to(tl.float32), 1) * scale
            total_R = tl.full((ROWS,), 1.0, tl.float32)
            sum_RD += new_v.to(tl.float32)
    for begin in tl.range(low, high, TILE):
        place_T = begin + token
        is_there = place_T < high
        block_T = tl.load(table + place_T // BLOCK_TOKENS, mask=is_there, other=0).to(tl.int64)
        row_T = ((block_T * BLOCK_TOKENS + place_T % BLOCK_TOKENS) * G + group) * D
        k_DT = tl.load(keys + row_T[None, :] + channel[:, None], mask=is_there[None, :], other=0.0)
        # Masked, not only weighted by zero: a place past the end may hold anything.
        v_TD = tl.load(
            values + row_T[:, None] + channel[None, :], mask=is_there[:, None], other=0.0
        )
        back_RT = place + query_R[:, None] - place_T[None, :]
        most_R, total_R, sum_RD = _see(
            q_RD, k_DT, v_TD, is_there[None, :] & (back_RT < reach), scale, most_R, total_R, sum_RD
        )
    out = mixed + ((first + query_R[:, None]) * G * R + head_R[:, None]) * D + channel[None, :]
    # Rows without a token may have seen nothing.
    if splits == 1:
        total_R = tl.where(is_row, total_R, 1.0)
        tl.store(out, (sum_RD / total_R[:, None]).to(mixed.dtype.element_ty), mask=is_row[:, None])
    else:
        cell = (tile * G + group) * splits
        mine = cell + split
        tl.store(parts + mine * ROWS * D + row[:, None] * D + channel[None, :], sum_RD)
        tl.store(marks + mine * 2 * ROWS + row, most_R)
        tl.store(marks + mine * 2 * ROWS + ROWS + row, total_R)
        tl.debug_barrier()
        arrived = tl.atomic_add(joined + tile * G + group, 1, sem="acq_rel")
        if arrived == splits - 1:
            tl.store(joined + tile * G + group, 0)
            most_R = tl.full((ROWS,), -1e30, tl.float32)
            total_R = tl.zeros((ROWS,), tl.float32)
            sum_RD = tl.zeros((ROWS, D), tl.float32)
            for other in range(splits):
                their = cell + other
                their_most_R = tl.load(marks + their * 2 * ROWS + row, volatile=True)
                their_total_R = tl.load(marks + their * 2 * ROWS + ROWS + row, volatile=True)
                their_sum_RD = tl.load(
                    parts + their * ROWS * D + row[:, None] * D + channel[None, :], volatile=True
                )
                now_R = tl.maximum(most_R, their_most_R)
                keep_R, add_R = tl.exp(most_R - now_R), tl.exp(their_most_R - now_R)
                total_R = total_R * keep_R + their_total_R * add_R
                sum_RD = sum_RD * keep_R[:, None] + their_sum_RD * add_R[:, None]
                most_R = now_R
            total_R = tl.where(is_row, total_R, 1.0)
            tl.store(
                out, (sum_RD / total_R[:, None]).to(mixed.dtype.element_ty), mask=is_row[:, None]
            )


class PagedAttention:
    """The kernel with its working memory, for passes of one shape."""

    def __init__(
        self,
        tiles: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
        splits: int = 0,
        queries: int = 1,
        usual_tiles: int = 0,
    ) -> None:
        """tiles: of a pass at most. splits: programs that share a tile; 0 gives each
        multiprocessor some, where `usual_tiles` of the tiles have tokens (0: all). queries: most
        tokens of a tile."""
        self.queries = queries
        self.rows = max(MIN_ROWS, triton.next_power_of_2(queries * num_heads // num_kv_heads))
        cells = tiles * num_kv_heads
        if not splits:
            on_gpu = device.type == "cuda"  # or in Triton's interpreter
            processors = (
                torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
            )
            # Several programs of a multiprocessor wait for memory together.
            programs = PROGRAMS_EACH * processors
            splits = max(1, min(MAX_SPLITS, programs // ((usual_tiles or tiles) * num_kv_heads)))
        self.splits = splits
        shape = cells * self.splits * self.rows if self.splits > 1 else 0
        self._parts = torch.empty(shape * head_dim, dtype=torch.float32, device=device)
        self._marks = torch.empty(2 * shape, dtype=torch.float32, device=device)
        # Zeros between calls.
        self._joined = torch.zeros(cells, dtype=torch.int32, device=device)

    def __call__(
        self,
        q_NHD: Tensor,
        k_NGD: Tensor,
        v_NGD: Tensor,
        keys: Tensor,
        values: Tensor,
        tables_BM: Tensor,
        lengths_N: Tensor,
        window: int = 0,
        tiles_T4: Tensor | None = None,
    ) -> Tensor:
        """mixed_NHD. keys, values: [blocks, block_tokens, G, D] of a layer. lengths_N: tokens of
        its sequence before each new one. tiles_T4: int32, of each tile its first token, how many it
        has (0: nobody's), the first new token of its sequence, and the row of that in the tables;
        None: every token is a sequence of its own. Heads lie one after another in q, k and v."""
        num_tokens, heads, width = q_NHD.shape
        groups = k_NGD.shape[1]
        mixed_NHD = torch.empty(num_tokens, heads, width, dtype=q_NHD.dtype, device=q_NHD.device)
        tiled = tiles_T4 is not None
        num_tiles = len(tiles_T4) if tiles_T4 is not None else num_tokens
        attend_blocks[(num_tiles, groups, self.splits)](
            q_NHD, k_NGD, v_NGD, keys, values, tables_BM, lengths_N,
            tiles_T4 if tiled else lengths_N, mixed_NHD, self._parts, self._marks, self._joined,
            width**-0.5, q_NHD.stride(0), k_NGD.stride(0), tables_BM.stride(0), window,
            self.splits,
            G=groups, R=heads // groups, QUERIES=self.queries, ROWS=self.rows, D=width,
            BLOCK_TOKENS=keys.shape[1], TILE=TILE_TOKENS, TILED=tiled,
        )  # fmt: skip
        return mixed_NHD

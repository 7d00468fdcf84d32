"""Says where attention over blocks is one kernel (`llm_core.kernels.paged_attention`), and cuts
passes into its tiles."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

import torch
from torch import Tensor

from llm_core.infer.cache.rounding import Numbers

# N tokens of a pass · H heads · D width of a head

TILE_ROWS = 64
"""Heads × tokens of a tile of several tokens at most: what registers hold of their sums."""


def has_triton() -> bool:
    """Not every build of torch for CUDA comes with it."""
    return importlib.util.find_spec("triton") is not None


def has_kernel(keys: Numbers) -> bool:
    """Whether the kernel serves one token of each sequence."""
    width = keys.stored.shape[-1]
    # The kernel's tiles are powers of two, and products of tensor cores at least 16 wide.
    fits = width >= 16 and width & (width - 1) == 0
    return keys.stored.is_cuda and keys.scales is None and fits and has_triton()


def has_tiles(keys: Numbers) -> bool:
    """Whether it serves several. In float32, which tensor cores do not multiply, it takes half a
    minute to compile."""
    return has_kernel(keys) and keys.stored.dtype in (torch.float16, torch.bfloat16)


def tile_queries(num_heads: int, num_kv_heads: int) -> int:
    """Most tokens of a tile, where it may have several: a power of two."""
    shared_by = 1 << (num_heads // num_kv_heads - 1).bit_length()
    return max(1, TILE_ROWS // shared_by)


def cut(sequences: Iterable[tuple[int, int, int]], queries: int) -> list[tuple[int, int, int, int]]:
    """Tiles as the kernel takes them. sequences: (begin, end, row): places of tokens in the pass
    and of their table among the tables."""
    return [
        (first, min(queries, end - first), begin, row)
        for begin, end, row in sequences
        for first in range(begin, end, queries)
    ]


def heads_together(x_NHD: Tensor) -> Tensor:
    """The same with heads one after another, as the kernel reads them."""
    is_together = x_NHD.stride(1) == x_NHD.shape[2] and x_NHD.stride(2) == 1
    return x_NHD if is_together else x_NHD.contiguous()

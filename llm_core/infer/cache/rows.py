"""Passes of a batch whose rows go in step: one over the prompts (prefill), then one token per row
and pass (decode).

What measures and checks a cache by itself needs no more; requests that come and go have
`llm_core.infer.engine`. Only the last position of a row pays for logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from llm_core.infer.cache.blocks import BlockPool, OutOfBlocks
from llm_core.infer.cache.branches import BranchCache
from llm_core.infer.cache.paged import PagedCache, Pass
from llm_core.infer.cache.rounding import RoundedKeys
from llm_core.infer.cache.static import CacheOverflow, RowCache, StaticCache, check_shorter
from llm_core.model.transformer import Transformer

# B rows · T tokens of this pass · H, G heads of queries, of keys · D width of a head · V vocabulary

MakeCache = Callable[[Transformer, Sequence[int], int], RowCache]
"""(model, tokens of each prompt, new tokens per prompt) → an empty cache that holds them all."""

BLOCK_TOKENS = 16


def place_of(model: Transformer) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the residual stream, and so of a cache: weights may be stored
    otherwise."""
    weight = model.norm.weight
    return weight.dtype, weight.device


@runtime_checkable
class MakesCaches(Protocol):
    """A model in several processes, so that its caches have parts in each of them."""

    def make_cache(self, kind: type, first: int, second: int, int8: bool) -> Any:
        """As `make_cache`."""

    def make_branches(
        self,
        branches_BQ: Tensor,
        positions_BQ: Tensor,
        prefix: StaticCache | None,
        has_branches: bool,
    ) -> BranchCache:
        """As `make_branches`."""


Kind = TypeVar("Kind", StaticCache, PagedCache, RoundedKeys)


def make_cache(
    model: Transformer, kind: type[Kind], first: int, second: int, int8: bool = False
) -> Kind:
    """A cache of this kind for the model. first, second: rows and capacity, or blocks and their
    tokens."""
    if isinstance(model, MakesCaches):
        made: Kind = model.make_cache(kind, first, second, int8)
        return made
    return kind(model.config, first, second, *place_of(model), int8=int8)


def make_branches(
    model: Transformer,
    branches_BQ: Tensor,
    positions_BQ: Tensor,
    prefix: StaticCache | None,
    has_branches: bool,
) -> BranchCache:
    """Who attends whom in one pass of the model. prefix: a cache of `make_cache`."""
    about = branches_BQ, positions_BQ, prefix, has_branches
    if isinstance(model, MakesCaches):
        return model.make_branches(*about)
    return BranchCache(model.config, *about)


def static_cache(
    model: Transformer, lengths: Sequence[int], max_new_tokens: int, int8: bool = False
) -> StaticCache:
    capacity = max(lengths) + max_new_tokens
    return make_cache(model, StaticCache, len(lengths), capacity, int8)


def paged_cache(
    model: Transformer,
    lengths: Sequence[int],
    max_new_tokens: int,
    int8: bool = False,
    block_tokens: int = BLOCK_TOKENS,
) -> PagedRows:
    capacity = max(lengths) + max_new_tokens
    # One more per row: the copy of a block that a fork writes into.
    num_blocks = len(lengths) * (1 - -capacity // block_tokens)
    cache = make_cache(model, PagedCache, num_blocks, block_tokens, int8)
    return PagedRows(cache, BlockPool(num_blocks, block_tokens), len(lengths), capacity)


class PagedRows:
    """Rows in blocks of a paged cache, each with the blocks that it needs so far."""

    def __init__(self, cache: PagedCache, pool: BlockPool, rows: int, capacity: int) -> None:
        self.cache, self.pool, self.capacity = cache, pool, capacity
        self._tables: list[list[int]] = [[] for _ in range(rows)]
        self._set_lengths([0] * rows)

    @property
    def num_bytes(self) -> int:
        return self.cache.num_bytes + self.lengths_B.nbytes

    def positions(self, num_queries: int) -> Tensor:
        self._check_room(num_queries)
        return self.lengths_B[:, None] + torch.arange(num_queries, device=self.lengths_B.device)

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        """As the static cache does. Raises CacheOverflow before anything is written."""
        tokens = k_BGTD.shape[2]
        if layer == 0:
            self._check_room(tokens)
            self._take_blocks(tokens)
            lengths = [length + tokens for length in self._lengths]
            ids = [[0] * tokens] * len(lengths)
            size, device = self.pool.block_tokens, self.lengths_B.device
            self.cache.begin(Pass.of(ids, lengths, self._tables, size, device))
        mixed_BHTD = self.cache.attend(layer, q_BHTD, k_BGTD, v_BGTD)
        if layer == self.cache.config.num_layers - 1:
            self._set_lengths([length + tokens for length in self._lengths])
        return mixed_BHTD

    def truncate(self, lengths: Sequence[int]) -> None:
        check_shorter(lengths, self._lengths)
        for table, length in zip(self._tables, lengths, strict=True):
            kept = -(-length // self.pool.block_tokens)
            self.pool.release(table[kept:])
            del table[kept:]
        self._set_lengths(list(lengths))

    def fork(self, rows: Sequence[int]) -> PagedRows:
        twin = PagedRows(self.cache, self.pool, len(rows), self.capacity)
        twin._tables = [list(self._tables[row]) for row in rows]
        for table in twin._tables:
            self.pool.hold(table)
        twin._set_lengths([self._lengths[row] for row in rows])
        return twin

    def _set_lengths(self, lengths: list[int]) -> None:
        self._lengths = lengths
        device = self.cache.keys.stored.device
        self.lengths_B = torch.tensor(lengths, dtype=torch.int32, device=device)

    def _check_room(self, num_queries: int) -> None:
        end = max(self._lengths) + num_queries
        if end > self.capacity:
            raise CacheOverflow(
                f"token {end - 1} does not fit rows of {self.capacity}; generate less or make a"
                f" cache of {end}"
            )

    def _take_blocks(self, tokens: int) -> None:
        """Blocks for new tokens, and copies of blocks that are written into and shared."""
        size, pool = self.pool.block_tokens, self.pool
        # A pass that was not made to its end has its blocks already.
        missing = [
            max(0, -(-(length + tokens) // size) - len(table))
            for length, table in zip(self._lengths, self._tables, strict=True)
        ]
        shared: list[int] = []
        left: Counter[int] = Counter()
        for row, length in enumerate(self._lengths):
            if length % size:
                block = self._tables[row][length // size]
                # The last of its holders may write into it.
                if pool.holders(block) - left[block] > 1:
                    shared.append(row)
                    left[block] += 1
        try:
            taken = pool.take(sum(missing) + len(shared))
        except OutOfBlocks as error:
            raise CacheOverflow(f"no block is left for the next token: {error}") from error
        copies = []
        for row in shared:
            place = self._lengths[row] // size
            copies.append((self._tables[row][place], taken.pop()))
            pool.release([copies[-1][0]])
            self._tables[row][place] = copies[-1][1]
        self.cache.copy_blocks(copies)
        begin = 0
        for table, count in zip(self._tables, missing, strict=True):
            table.extend(taken[begin : begin + count])
            begin += count


@torch.inference_mode()
def prefill(model: Transformer, prompts: Sequence[Sequence[int]], cache: RowCache) -> Tensor:
    """Append a prompt to each row; logits_BV of the next tokens. Raises CacheOverflow if full."""
    longest = max(map(len, prompts))
    device = place_of(model)[1]
    ids_BT = torch.tensor([[*p, *[0] * (longest - len(p))] for p in prompts], device=device)
    before_B = cache.lengths_B
    hidden_BTD = model.hidden(ids_BT, cache.positions(longest), cache)
    lengths_B = torch.tensor(list(map(len, prompts)), device=device)
    if min(map(len, prompts)) < longest:
        cache.truncate((before_B + lengths_B).tolist())
    rows_B = torch.arange(len(prompts), device=device)
    return model.logits(hidden_BTD[rows_B, lengths_B - 1])


@torch.inference_mode()
def decode(model: Transformer, ids_B: Sequence[int] | Tensor, cache: RowCache) -> Tensor:
    """Append one token to every row; logits_BV of the token that follows. Raises CacheOverflow
    where there is no room."""
    ids_B1 = torch.as_tensor(ids_B, device=place_of(model)[1])[:, None]
    hidden_B1D = model.hidden(ids_B1, cache.positions(1), cache)
    return model.logits(hidden_B1D[:, 0])

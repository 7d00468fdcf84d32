"""Keeps keys and values of earlier tokens, so that a new token costs one position and not the whole
sequence.

`StaticCache` allocates everything once, for rows that take their passes together:
[layers, rows, kv_heads, capacity, head_dim] for keys and for values. Row b has lengths_B[b] tokens,
from column 0 on, so its first token has position 0 and no column is padding. Prompts of different
length are written with something behind the shorter ones, which `truncate` then drops: causal
attention never looked at it, and later tokens are written over it.

Memory is 2 · layers · rows · kv_heads · capacity · head_dim numbers, whatever is used of it; with
8 bits per number, one float32 more per token, head and kind (`llm_core.infer.cache.rounding`).
Blocks that rows share: `llm_core.infer.cache.paged`. A window masks columns and frees none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from llm_core.infer.cache.attention import attend_keys, attend_ragged
from llm_core.infer.cache.rounding import Numbers
from llm_core.model.attention import KeyValueCache
from llm_core.model.config import ModelConfig

# B rows · H query heads · G key/value heads · T tokens of this pass (queries) · K key columns
# D width of a head


class CacheOverflow(ValueError):
    """A token that has no place in the cache. Nothing was written."""


class RowCache(KeyValueCache, Protocol):
    """A cache of rows that take their passes together, each row at its own length."""

    lengths_B: Tensor
    """int32: tokens of each row, on the device."""

    def positions(self, num_queries: int) -> Tensor:
        """positions_BT of the coming tokens. Raises CacheOverflow where they do not fit."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget what row b has beyond lengths[b]."""

    def fork(self, rows: Sequence[int]) -> RowCache:
        """A cache whose row i begins as `rows[i]` of this one; neither changes the other."""

    @property
    def num_bytes(self) -> int:
        """Bytes of keys, values and what describes them."""


class StaticCache:
    """A pre-allocated cache of rows, in one piece of memory."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        int8: bool = False,
    ) -> None:
        self.config, self.patterns, self.capacity = config, config.patterns, capacity
        shape = config.num_layers, rows, config.num_kv_heads, capacity, config.head_dim
        self.keys, self.values = (Numbers(shape, dtype, device, int8) for _ in range(2))
        self.lengths_B = torch.zeros(rows, dtype=torch.int32, device=device)
        # The same on this side of the device: shapes depend on them, and asking would wait.
        self._lengths = [0] * rows

    @property
    def num_bytes(self) -> int:
        return self.keys.num_bytes + self.values.num_bytes + self.lengths_B.nbytes

    def positions(self, num_queries: int) -> Tensor:
        self._check_room(num_queries)
        return self.lengths_B[:, None] + torch.arange(num_queries, device=self.lengths_B.device)

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        """Store the keys and values of the coming tokens, then attend. The last layer ends a pass.

        Raises CacheOverflow before anything is written.
        """
        tokens = k_BGTD.shape[2]
        self._check_room(tokens)
        self._write(layer, k_BGTD, v_BGTD)
        mixed_BHTD = self._mix(layer, q_BHTD)
        if layer == self.config.num_layers - 1:
            self._lengths = [length + tokens for length in self._lengths]
            self.lengths_B = self.lengths_B + tokens
        return mixed_BHTD

    def truncate(self, lengths: Sequence[int]) -> None:
        check_shorter(lengths, self._lengths)
        self._lengths = list(lengths)
        self.lengths_B = torch.tensor(
            self._lengths, dtype=torch.int32, device=self.lengths_B.device
        )

    def fork(self, rows: Sequence[int]) -> StaticCache:
        twin = StaticCache.__new__(type(self))
        twin.config, twin.patterns, twin.capacity = self.config, self.patterns, self.capacity
        twin.keys, twin.values = self.keys.take(1, rows), self.values.take(1, rows)
        twin._lengths = [self._lengths[row] for row in rows]
        twin.lengths_B = self.lengths_B[list(rows)]
        return twin

    @property
    def _is_even(self) -> bool:
        """Whether all rows have as many tokens: then they are slices."""
        return min(self._lengths) == max(self._lengths)

    def _write(self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor) -> None:
        new, every = k_BGTD.shape[2], slice(None)
        if self._is_even:
            begin = self._lengths[0]
            place = layer, every, every, slice(begin, begin + new)
            self.keys.write(place, k_BGTD)
            self.values.write(place, v_BGTD)
            return
        device = self.lengths_B.device
        row_B1 = torch.arange(len(self._lengths), device=device)[:, None]
        column_BT = self.lengths_B[:, None] + torch.arange(new, device=device)
        # Indices with a slice between them come first: [B, T, G, D].
        ragged = layer, row_B1, every, column_BT
        self.keys.write(ragged, k_BGTD.transpose(1, 2))
        self.values.write(ragged, v_BGTD.transpose(1, 2))

    def _mix(self, layer: int, q_BHTD: Tensor) -> Tensor:
        new, pattern = q_BHTD.shape[2], self.patterns[layer]
        k_BGKD, v_BGKD = self._read(layer, max(self._lengths) + new)
        if self._is_even:
            return attend_keys(q_BHTD, k_BGKD, v_BGKD, pattern)
        return attend_ragged(q_BHTD, k_BGKD, v_BGKD, self.lengths_B + new, pattern)

    def _read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        place = layer, slice(None), slice(None), slice(0, end)
        return self.keys.read(place), self.values.read(place)

    def _check_room(self, num_queries: int) -> None:
        end = max(self._lengths) + num_queries
        if end > self.capacity:
            raise CacheOverflow(
                f"token {end - 1} does not fit a cache of {self.capacity}; generate less or make a"
                f" cache of {end}"
            )


def check_shorter(lengths: Sequence[int], present: Sequence[int]) -> None:
    assert len(lengths) == len(present), f"{len(lengths)} lengths for {len(present)} rows"
    for row, (wanted, there) in enumerate(zip(lengths, present, strict=True)):
        assert 0 <= wanted <= there, f"row {row} has {there} tokens and cannot keep {wanted}"

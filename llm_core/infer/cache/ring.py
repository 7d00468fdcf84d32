"""Keeps of layers with a window the tokens of the window alone, in a ring; of other layers all.

Token p of a row lies in column p % window. A single token is written over the one that leaves the
window, and attends what is then there, in whatever order. Several are attended behind what the
ring holds, and enter it when the next pass begins: until then any of them may be taken back, as
padding of short prompts is. Further back than that a token cannot be taken back once the ring has
wrapped: what came before it is overwritten.

Memory: 2 · rows · kv_heads · head_dim · (window · layers with one + capacity · others) numbers, and
those of a last pass of several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from llm_core.infer.cache.attention import attend_keys, attend_masked
from llm_core.infer.cache.rounding import Numbers, from_int8, to_int8
from llm_core.infer.cache.static import StaticCache
from llm_core.model.config import ModelConfig

# B rows · H query heads · G key/value heads · T tokens of this pass (queries) · K key columns
# R columns of the ring · D width of a head


class WindowPassed(ValueError):
    """Tokens cannot be taken back: what came before them has left the window. Nothing changed."""


class RingCache(StaticCache):
    """A pre-allocated cache of rows that forgets what no later token attends."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        int8: bool = False,
    ) -> None:
        super().__init__(config, rows, 0, dtype, device, int8)
        self.capacity = capacity
        layers = [bool(config.window_of(layer)) for layer in range(config.num_layers)]
        # Of each layer, its place among those of its kind.
        self._places = [layers[:n].count(has_window) for n, has_window in enumerate(layers)]
        self.ring_tokens = min(config.window or capacity, capacity)
        heads = config.num_kv_heads, config.head_dim

        def numbers(num_layers: int, columns: int) -> Numbers:
            return Numbers((num_layers, rows, heads[0], columns, heads[1]), dtype, device, int8)

        self.keys, self.values = (numbers(layers.count(False), capacity) for _ in range(2))
        self.ring = tuple(numbers(layers.count(True), self.ring_tokens) for _ in range(2))
        # Tokens of each row that have been in the ring.
        self._in_ring = [0] * rows
        # By layer, keys and values of a last pass of several tokens, and the lengths before it.
        self._before = [0] * rows
        self._coming: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_bytes(self) -> int:
        coming = sum(x.nbytes for pair in self._coming.values() for x in pair)
        return super().num_bytes + sum(numbers.num_bytes for numbers in self.ring) + coming

    def truncate(self, lengths: Sequence[int]) -> None:
        """Raises WindowPassed."""
        for row, (wanted, seen) in enumerate(zip(lengths, self._in_ring, strict=True)):
            if self.config.window and seen > self.ring_tokens and wanted < seen - 1:
                raise WindowPassed(
                    f"row {row} cannot go back from {seen} to {wanted} tokens with a ring of"
                    f" {self.ring_tokens}; take a cache that keeps all tokens"
                )
        super().truncate(lengths)

    def fork(self, rows: Sequence[int]) -> RingCache:
        twin = cast(RingCache, super().fork(rows))
        twin._places, twin.ring_tokens = self._places, self.ring_tokens
        twin.ring = tuple(numbers.take(1, rows) for numbers in self.ring)
        twin._in_ring = [self._in_ring[row] for row in rows]
        twin._before = [self._before[row] for row in rows]
        twin._coming = {n: (k[list(rows)], v[list(rows)]) for n, (k, v) in self._coming.items()}
        return twin

    def _write(self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor) -> None:
        if not self.config.window_of(layer):
            super()._write(self._places[layer], k_BGTD, v_BGTD)
            return
        if not self._places[layer]:  # the first of its kind begins a pass
            self._settle()
            self._before = list(self._lengths)
        if k_BGTD.shape[2] > 1:
            self._coming[layer] = self._rounded(k_BGTD), self._rounded(v_BGTD)
            return
        device = self.lengths_B.device
        row_B = torch.arange(len(self._lengths), device=device)
        # Indices with a slice between them come first: [B, G, D].
        place = self._places[layer], row_B, slice(None), self.lengths_B % self.ring_tokens
        for numbers, new in zip(self.ring, (k_BGTD, v_BGTD), strict=True):
            numbers.write(place, new[:, :, 0])
        self._in_ring = [length + 1 for length in self._lengths]

    def _settle(self) -> None:
        """Take what is left of the last pass into the ring."""
        for layer, pair in self._coming.items():
            for row, (begin, end) in enumerate(zip(self._before, self._lengths, strict=True)):
                first = max(begin, end - self.ring_tokens)
                columns = [position % self.ring_tokens for position in range(first, end)]
                for numbers, new_BGTD in zip(self.ring, pair, strict=True):
                    place = self._places[layer], row, slice(None), columns
                    numbers.write(place, new_BGTD[row, :, first - begin : max(end - begin, 0)])
        if self._coming:
            self._in_ring = list(map(max, self._in_ring, self._lengths))
            self._coming = {}

    def _rounded(self, new: Tensor) -> Tensor:
        """What the ring would give back of it."""
        return new if self.ring[0].scales is None else from_int8(*to_int8(new), new.dtype)

    def _read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        return super()._read(self._places[layer], end)

    def _mix(self, layer: int, q_BHTD: Tensor) -> Tensor:
        window, new = self.config.window_of(layer), q_BHTD.shape[2]
        if not window:
            return super()._mix(layer, q_BHTD)
        if new == 1:
            return self._mix_one(layer, q_BHTD)
        most = min(max(self._lengths), self.ring_tokens)
        # From the earliest token that may be there to the last.
        position_BK = self.lengths_B[:, None] + torch.arange(-most, 0, device=q_BHTD.device)
        earlier = self._in_order(layer, position_BK % self.ring_tokens)
        k_BGKD, v_BGKD = (
            torch.cat(both, dim=2) for both in zip(earlier, self._coming[layer], strict=True)
        )
        if self._is_even:
            return attend_keys(q_BHTD, k_BGKD, v_BGKD, window)
        key_K = torch.arange(-most, new, device=q_BHTD.device)
        query_T1 = torch.arange(new, device=q_BHTD.device)[:, None]
        allowed_TK = (key_K <= query_T1) & (key_K > query_T1 - window)
        there_BK = self.lengths_B[:, None] + key_K >= 0
        return attend_masked(q_BHTD, k_BGKD, v_BGKD, (allowed_TK & there_BK[:, None])[:, None])

    def _mix_one(self, layer: int, q_BHTD: Tensor) -> Tensor:
        most = min(max(self._lengths) + 1, self.ring_tokens)
        place = self._places[layer], slice(None), slice(None), slice(0, most)
        k_BGKD, v_BGKD = (numbers.read(place) for numbers in self.ring)
        if min(self._lengths) + 1 >= most:
            return attend_masked(q_BHTD, k_BGKD, v_BGKD, None)
        there_BK = torch.arange(most, device=q_BHTD.device) <= self.lengths_B[:, None]
        return attend_masked(q_BHTD, k_BGKD, v_BGKD, there_BK[:, None, None])

    def _in_order(self, layer: int, columns_BK: Tensor) -> tuple[Tensor, ...]:
        row_B1 = torch.arange(len(columns_BK), device=columns_BK.device)[:, None]
        place = self._places[layer], row_B1, slice(None), columns_BK
        return tuple(numbers.read(place).transpose(1, 2) for numbers in self.ring)

"""Keys and values of earlier tokens, so that a new token costs one position and not the whole
sequence.

`StaticCache` allocates everything once: [layers, batch, heads, capacity, head_dim] for keys and for
values. All rows write the same columns. Prompts of different length are padded on the left: row b
has `pad_tokens[b]` columns of padding, its first token stands at column pad_tokens[b] and has
position 0. So one slice holds the new columns of every row, and the last column is the newest token
of every row.

Memory is 2 · layers · batch · kv_heads · capacity · head_dim numbers, whatever is used of it. Not
here: paged and quantised caches, sliding windows, rows that enter or leave a running batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# B batch · H key/value heads · T tokens of this pass (queries) · K key columns · D head dim


class CacheOverflow(ValueError):
    """A token that has no place in the cache. Nothing was written."""


class StaticCache:
    """A pre-allocated cache for one batch of requests that start together.

    pad_tokens: columns of padding on the left of each row; none when empty.
    """

    def __init__(
        self,
        num_layers: int,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        pad_tokens: Sequence[int] = (),
    ) -> None:
        assert not pad_tokens or len(pad_tokens) == batch, (
            f"{len(pad_tokens)} paddings for {batch} rows"
        )
        self.capacity = capacity
        self.length = 0
        """Columns that hold tokens or padding, the same in every layer between two passes."""
        self._filled = [0] * num_layers
        # Zeros, not empty memory: a NaN left in a masked column would survive its weight of zero.
        self._keys = torch.zeros(
            num_layers, batch, kv_heads, capacity, head_dim, dtype=dtype, device=device
        )
        self._values = torch.zeros_like(self._keys)
        self._pads_B = torch.tensor(pad_tokens or [0] * batch, dtype=torch.long, device=device)
        self._padded = any(pad_tokens)

    def positions(self, num_queries: int) -> Tensor:
        """positions_BT of the coming columns: each token's place in its own row, 0 for padding."""
        columns_T = self._columns(self.length, self.length + num_queries)
        return (columns_T[None] - self._pads_B[:, None]).clamp(min=0)

    def mask(self, num_queries: int) -> Tensor | None:
        """Where the coming queries may attend, mask_B1TK or mask_11TK; None when that is every
        column.

        Bottom-right causal: the last query is the last column. (`is_causal` of
        scaled_dot_product_attention is top-left, which is another mask as soon as there are more
        keys than queries.)
        """
        end = self._end(self.length, num_queries)
        if num_queries == 1 and not self._padded:
            return None
        keys_K = self._columns(0, end)
        queries_T1 = self._columns(self.length, end)[:, None]
        causal_TK = keys_K <= queries_T1
        if not self._padded:
            return causal_TK[None, None]
        real_B1K = keys_K >= self._pads_B[:, None, None]
        # A padding query sees itself: with nothing to see its softmax would be NaN.
        return (causal_TK & real_B1K | (keys_K == queries_T1))[:, None]

    def update(self, layer: int, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the coming columns in `layer`, and give back all of its
        columns so far.

        Raises CacheOverflow before anything is written.
        """
        begin = self._filled[layer]
        end = self._end(begin, k_BHTD.shape[2])
        self._keys[layer, :, :, begin:end] = k_BHTD
        self._values[layer, :, :, begin:end] = v_BHTD
        self._filled[layer] = end
        # In the middle of a pass the first layers are ahead of the last.
        self.length = min(self._filled)
        return self._keys[layer, :, :, :end], self._values[layer, :, :, :end]

    def _end(self, begin: int, num_queries: int) -> int:
        end = begin + num_queries
        if end > self.capacity:
            raise CacheOverflow(
                f"column {end - 1} does not fit a cache of {self.capacity}; generate less or make a"
                f" cache of {end}"
            )
        return end

    def _columns(self, begin: int, end: int) -> Tensor:
        return torch.arange(begin, end, device=self._pads_B.device)

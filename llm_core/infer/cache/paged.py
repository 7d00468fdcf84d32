"""Keeps keys and values in blocks that sequences share, and computes tokens of many sequences in
one pass.

A block holds `block_tokens` tokens of one sequence (Kwon et al., 2023). A pass lays its tokens end
to end, whatever sequences they belong to, and `Pass` says for each where its keys go and for each
sequence which blocks it may attend. Its tensors have no other form than their sizes, so that a
kernel or a captured graph can follow them. Which block holds what is decided elsewhere
(`llm_core.infer.scheduler`, `llm_core.infer.cache.blocks`).

Memory: 2 · layers · blocks · block_tokens · kv_heads · head_dim numbers. Blocks that every layer's
window has left may be skipped, and used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_core.infer.cache.attention import attend_keys, attend_masked, ragged_mask
from llm_core.infer.cache.rounding import Numbers
from llm_core.infer.cache.tiles import cut, has_tiles, heads_together, tile_queries
from llm_core.infer.cpu.few_rows import attend_blocks, is_for_one_thread
from llm_core.model.config import ModelConfig
from llm_core.model.sparse.patterns import Pattern

# N tokens of the pass, of all sequences · S sequences · M most blocks of a sequence
# H query heads · G key/value heads · K keys of a sequence · D width of a head

COPIED_BYTES = 256 << 10
"""Of keys and values of a sequence in a layer: a CPU copies as many in less time than a separate
attention for the sequence takes."""


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence in a pass, on this side of the device."""

    begin: int
    end: int
    """Places among the N tokens of the pass."""
    length: int
    """Keys of the sequence, those of this pass included."""
    blocks: Sequence[int]
    """Those that hold them, in order."""
    is_run: bool
    """Whether they follow one another, so that what they hold is a view."""


@dataclass(frozen=True)
class Pass:
    """Tokens of several sequences, laid end to end, and their places in the cache."""

    ids_N: Tensor
    positions_N: Tensor
    """Those of the model."""
    places_N: Tensor
    """int32: keys before each token in the blocks of its sequence."""
    slots_N: Tensor
    """int64: block · block_tokens + offset, where the key and value of each token go."""
    tables_SM: Tensor
    """int32: the blocks of each sequence; 0 behind its last."""
    lengths_S: Tensor
    """int32: keys of each sequence, those of this pass included."""
    spans: tuple[Span, ...]
    """The same for loops on this side; kernels that follow tables do without."""

    @staticmethod
    def of(
        tokens: Sequence[Sequence[int]],
        lengths: Sequence[int],
        tables: Sequence[Sequence[int]],
        block_tokens: int,
        device: torch.device | str,
        skipped: Sequence[int] = (),
    ) -> Pass:
        """tokens: the new ones of each sequence, the last of `lengths` in all, which go in the
        blocks of `tables`. skipped: tokens of each sequence before those of its blocks, which
        nobody attends any more; none by default."""
        positions: list[int] = []
        places: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        before = skipped or [0] * len(tokens)
        for new, length, table, dropped in zip(tokens, lengths, tables, before, strict=True):
            begin = length - len(new)
            places.extend(range(begin, length))
            positions.extend(range(dropped + begin, dropped + length))
            slots.extend(
                table[place // block_tokens] * block_tokens + place % block_tokens
                for place in range(begin, length)
            )
            used = table[: -(-length // block_tokens)]
            is_run = used == list(range(used[0], used[0] + len(used)))
            first = spans[-1].end if spans else 0
            spans.append(Span(first, first + len(new), length, used, is_run))
        widest = max(map(len, tables))
        padded = [[*table, *[0] * (widest - len(table))] for table in tables]
        ids = [token for new in tokens for token in new]

        def tensor(values: object, dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return Pass(
            ids_N=tensor(ids, torch.int64),
            positions_N=tensor(positions, torch.int64),
            places_N=tensor(places, torch.int32),
            slots_N=tensor(slots, torch.int64),
            tables_SM=tensor(padded, torch.int32),
            lengths_S=tensor(lengths, torch.int32),
            spans=tuple(spans),
        )

    @property
    def is_decode(self) -> bool:
        """Whether sequences have one token each."""
        return len(self.spans) == self.spans[-1].end

    @property
    def is_even_decode(self) -> bool:
        """Whether several sequences have one token each, and lengths that fit one batch: at most
        half of its blocks are padding."""
        if len(self.spans) < 2 or not self.is_decode:
            return False
        lengths = [span.length for span in self.spans]
        return max(lengths) * len(lengths) <= 2 * sum(lengths)

    @property
    def is_whole(self) -> bool:
        """Whether this is one sequence from its first token on, which needs no blocks."""
        return len(self.spans) == 1 and self.spans[0].end == self.spans[0].length


class _TiledPass:
    """A pass as the kernel over blocks takes it: all sequences at once, whatever they have in the
    cache. Its tensors are the same in all layers."""

    def __init__(self, coming: Pass, num_heads: int, num_kv_heads: int, width: int) -> None:
        from llm_core.kernels.paged_attention import PagedAttention

        device, queries = coming.ids_N.device, tile_queries(num_heads, num_kv_heads)
        sequences = [(span.begin, span.end, row) for row, span in enumerate(coming.spans)]
        tiles = cut(sequences, queries)
        self.tiles_T4 = torch.tensor(tiles, dtype=torch.int32, device=device)
        self.tables_SM, self.lengths_N = coming.tables_SM, coming.places_N
        self.kernel = PagedAttention(
            len(tiles), num_heads, num_kv_heads, width, device, queries=queries
        )

    def attend(
        self, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor, keys: Tensor, values: Tensor, window: int
    ) -> Tensor:
        """mixed_1HND; keys and values are stored."""
        q_NHD, k_NGD, v_NGD = (heads_together(x.transpose(0, 1)) for x in (q_HND, k_GND, v_GND))
        mixed_NHD = self.kernel(
            q_NHD, k_NGD, v_NGD, keys, values, self.tables_SM, self.lengths_N, window,
            self.tiles_T4,
        )  # fmt: skip
        return mixed_NHD.transpose(0, 1)[None]


class PagedCache:
    """Blocks of keys and values; `begin` says whose tokens the next pass through the model has."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        int8: bool = False,
    ) -> None:
        self.config, self.num_blocks, self.block_tokens = config, num_blocks, block_tokens
        shape = config.num_layers, num_blocks, block_tokens, config.num_kv_heads, config.head_dim
        self.keys, self.values = (Numbers(shape, dtype, device, int8) for _ in range(2))
        self.patterns = config.patterns
        self.slides = not config.attention
        """Whether layers attend all tokens or a window, as kernels do."""
        self.has_tiles = self.slides and has_tiles(self.keys)
        """Whether a pass attends in one kernel."""
        self._pass: Pass | None = None
        self._tiled: _TiledPass | None = None
        # By pattern and by sequence: the same in all layers of a pass.
        self._masks: dict[Pattern, Tensor] = {}
        self._blocks: dict[int, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        return self.keys.num_bytes + self.values.num_bytes

    def begin(self, coming: Pass) -> None:
        self._pass, self._masks, self._blocks, self._tiled = coming, {}, {}, None

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy what blocks hold in every layer, (from, to)."""
        if copies:
            sources, targets = zip(*copies, strict=True)
            for numbers in (self.keys, self.values):
                numbers.copy(1, sources, targets)

    def attend(self, layer: int, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> Tensor:
        """The tokens of the pass in one row, or each row with as many; in the order of `Pass`."""
        coming = self._pass
        assert coming is not None, "begin a pass before the model computes it"
        q_HND, k_GND, v_GND = (
            x[0] if len(x) == 1 else x.transpose(0, 1).flatten(1, 2)
            for x in (q_BHTD, k_BGTD, v_BGTD)
        )
        pattern = self.patterns[layer]
        if self.has_tiles and not coming.is_whole:
            if self._tiled is None:
                self._tiled = _TiledPass(coming, len(q_HND), len(k_GND), q_HND.shape[2])
            stored = self.keys.stored[layer], self.values.stored[layer]
            mixed_1HND = self._tiled.attend(q_HND, k_GND, v_GND, *stored, pattern.window)
            return self._in_rows(mixed_1HND, len(q_BHTD))
        if coming.is_decode and self.is_small(coming):
            q_NHD, k_NGD, v_NGD = (x.transpose(0, 1) for x in (q_HND, k_GND, v_GND))
            stored = self.keys.stored[layer], self.values.stored[layer]
            which = coming.tables_SM, coming.lengths_S
            mixed_NHD = attend_blocks(q_NHD, k_NGD, v_NGD, *stored, *which, pattern.window)
            return self._in_rows(mixed_NHD.transpose(0, 1)[None], len(q_BHTD))
        self.keys.write_slots(layer, coming.slots_N, k_GND.transpose(0, 1))
        self.values.write_slots(layer, coming.slots_N, v_GND.transpose(0, 1))
        if coming.is_even_decode and not self._has_views(coming):
            # To the order of a batch and back: tokens are its rows.
            mixed_SHQD = self._decode(layer, q_HND.transpose(0, 1)[:, :, None], coming, pattern)
            mixed_1HND = mixed_SHQD[:, :, 0].transpose(0, 1)[None]
        else:
            mixed_1HND = self._each(layer, q_HND, k_GND, v_GND, coming, pattern)
        return self._in_rows(mixed_1HND, len(q_BHTD))

    @staticmethod
    def _in_rows(mixed_1HND: Tensor, rows: int) -> Tensor:
        if rows == 1:
            return mixed_1HND
        return mixed_1HND[0].unflatten(1, (rows, -1)).transpose(0, 1)

    def _each(
        self,
        layer: int,
        q_HND: Tensor,
        k_GND: Tensor,
        v_GND: Tensor,
        coming: Pass,
        pattern: Pattern,
    ) -> Tensor:
        """One sequence after another, mixed_1HND."""
        mixed = []
        for span in coming.spans:
            new = slice(span.begin, span.end)
            if span.end - span.begin == span.length and self.keys.scales is None:
                k_1GKD, v_1GKD = k_GND[None, :, new], v_GND[None, :, new]  # as they are stored
            else:
                k_1GKD, v_1GKD = (self._read(x, layer, span) for x in (self.keys, self.values))
            mixed.append(attend_keys(q_HND[None, :, new], k_1GKD, v_1GKD, pattern))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)

    def _decode(self, layer: int, q_SHQD: Tensor, coming: Pass, pattern: Pattern) -> Tensor:
        """Sequences of one query each at once: their blocks are copied together."""
        blocks = coming.tables_SM.flatten()
        shape = len(coming.spans), -1, *self.keys.stored.shape[-2:]
        k_SGKD, v_SGKD = (
            numbers.read_blocks(layer, blocks).view(shape).transpose(1, 2)
            for numbers in (self.keys, self.values)
        )
        if pattern not in self._masks:
            self._masks[pattern] = ragged_mask(coming.lengths_S, 1, k_SGKD.shape[2], pattern)
        return attend_masked(q_SHQD, k_SGKD, v_SGKD, self._masks[pattern])

    def is_small(self, coming: Pass) -> bool:
        """Whether a kernel of one thread reads what a decode attends where it lies."""
        stored = self.keys.stored
        is_plain = stored.device.type == "cpu" and stored.dtype == torch.float32
        if not (is_plain and self.slides) or torch.is_grad_enabled():
            return False
        num_keys = sum(span.length for span in coming.spans)
        return is_for_one_thread(2 * num_keys * stored[0, 0, 0].nbytes)

    def _has_views(self, coming: Pass) -> bool:
        """Whether sequences are faster one by one: a CPU then reads them without a copy. Two
        are at any length."""
        stored, spans = self.keys.stored, coming.spans
        is_plain = self.keys.scales is None and stored.device.type == "cpu"
        if not (is_plain and all(span.is_run for span in spans)):
            return False
        num_keys = sum(span.length for span in spans)
        is_short = 2 * num_keys * stored[0, 0, 0].nbytes <= COPIED_BYTES * len(spans)
        return len(spans) == 2 or not is_short

    def _read(self, numbers: Numbers, layer: int, span: Span) -> Tensor:
        """k_1GKD or v_1GKD of a sequence: a view where its blocks follow one another."""
        if span.is_run:
            first = span.blocks[0]
            found = numbers.read((layer, slice(first, first + len(span.blocks))))
        else:
            if span.begin not in self._blocks:
                blocks = torch.tensor(span.blocks, device=numbers.stored.device)
                self._blocks[span.begin] = blocks
            found = numbers.read_blocks(layer, self._blocks[span.begin])
        return found.flatten(0, 1)[: span.length].transpose(0, 1)[None]

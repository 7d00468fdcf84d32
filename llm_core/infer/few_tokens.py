"""Computes passes of few tokens, of prompts and answers together, as captured graphs.

Run one by one, the operations of a pass take longer to start than few tokens take to compute: what
is left of a prompt behind a shared prefix would wait as long as all of it. A graph has a fixed
number of tokens and of sequences. Tokens behind the last are a sequence of nobody's, which writes
into a spare block, so that no place of the pass is special. Each sequence is given the token that
follows its last one; whether anybody wants it is not the graph's to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from llm_core.infer.bursts import Bursts, blocks_for, capture
from llm_core.infer.cache.tiles import cut, tile_queries
from llm_core.infer.choice.rows import RowChooser, Stream, chooser_fields
from llm_core.infer.decoders import (
    DecodeRows,
    RowsView,
    Tiles,
    one_pass_kernels,
)
from llm_core.infer.parcel import Parcel

# N tokens of a pass · B sequences · T tiles · M blocks of a sequence at most · V vocabulary

SIZES = (16, 64, 256, 512)
"""Tokens of a pass. Captured when first needed, or in the warm-up; there are few, as each takes
some tenths of a second and memory of its own."""
MOST_SEQUENCES = 16


class Part(NamedTuple):
    """Tokens of one sequence in a pass."""

    ids: Sequence[int]
    length: int
    """Tokens of the sequence before them."""
    blocks: Sequence[int]
    step: int
    """Tokens that the answer has already."""
    stream: Stream


class FewTokens:
    """The passes of a model and the cache that its bursts decode with."""

    def __init__(self, bursts: Bursts) -> None:
        self.bursts = bursts
        config, cache = bursts.model.config, bursts.cache
        # Without the kernel each token would copy all blocks of its sequence. On a CPU, where
        # nothing is captured, passes are the same for proofs.
        serves = bursts.device.type == "cpu" or cache.has_tiles
        self.sizes = [size for size in SIZES if serves and size <= config.max_seq_len]
        self._passes: dict[int, _FixedPass] = {}

    def serves(self, num_tokens: int, num_sequences: int) -> bool:
        most = max(self.sizes, default=0)
        return num_tokens <= most and num_sequences <= MOST_SEQUENCES

    def run(self, parts: Sequence[Part]) -> list[int]:
        """The id that follows each part; -1 where logits were not numbers."""
        num_tokens = sum(len(part.ids) for part in parts)
        return self._pass(next(size for size in self.sizes if num_tokens <= size)).run(parts)

    def warm_up(self) -> None:
        """Capture the passes of all sizes."""
        for size in self.sizes:
            self._pass(size)

    def _pass(self, size: int) -> _FixedPass:
        if size not in self._passes:
            self._passes[size] = _FixedPass(self.bursts, size)
        return self._passes[size]


class _FixedPass:
    """Buffers of a pass of one size, and on a GPU its graph."""

    def __init__(self, bursts: Bursts, size: int) -> None:
        model, cache, device = bursts.model, bursts.cache, bursts.device
        self.size, self.model = size, model
        self.queries = tile_queries(model.config.num_heads, model.config.num_kv_heads)
        rows, usual = MOST_SEQUENCES + 1, -(-size // self.queries) + 1
        # Every sequence may end within a tile.
        most_tiles = size // self.queries + rows
        table_blocks = max(bursts.table_blocks, blocks_for(size, cache))
        fields = {
            "ids": ((size,), torch.int64),
            "lengths": ((size,), torch.int32),
            "sequences": ((size,), torch.int64),
            "tiles": ((most_tiles, 4), torch.int32),
            "tables": ((rows, table_blocks), torch.int32),
            "ends": ((rows,), torch.int64),
            **chooser_fields(rows),
        }
        self.parcel = Parcel(fields, device)
        self.parcel.here["tables"][:] = bursts.spare_block
        self.parcel.send()
        there = self.parcel.there
        self.rows = DecodeRows(there["ids"], there["lengths"], there["tables"])
        tiles = Tiles(there["sequences"], there["tiles"], self.queries, usual)
        self.view = RowsView(cache, self.rows, tiles)
        self.chooser = RowChooser(self.parcel, rows, 1, device)
        # The chooser moves rows on; a pass has no next step that would read them.
        self._next_ids_B = torch.zeros(rows, dtype=torch.int64, device=device)
        self._lengths_B = torch.zeros(rows, dtype=torch.int32, device=device)
        self._fill([])
        self._replay = self._step
        if device.type == "cuda":
            with one_pass_kernels(model):
                self._replay = capture(self._step, device)

    def run(self, parts: Sequence[Part]) -> list[int]:
        self._fill(parts)
        self._replay()
        return self.chooser.told_BK[: len(parts), 0].tolist()  # type: ignore[no-any-return]

    def _fill(self, parts: Sequence[Part]) -> None:
        here = self.parcel.here
        begin, sequences = 0, []
        for row, part in enumerate(parts):
            here["tables"][row, : len(part.blocks)] = part.blocks
            end = begin + len(part.ids)
            here["ids"][begin:end] = part.ids
            here["lengths"][begin:end] = range(part.length, part.length + end - begin)
            sequences.append((begin, end, row))
            begin = end
        here["ids"][begin:] = 0
        here["lengths"][begin:] = range(self.size - begin)
        if begin < self.size:  # in the last row of the tables, which is of spare blocks
            sequences.append((begin, self.size, MOST_SEQUENCES))
        for begin, end, row in sequences:
            here["sequences"][begin:end] = row
            here["ends"][row] = end - 1
        tiles = cut(sequences, self.queries)
        here["tiles"][: len(tiles)] = tiles
        here["tiles"][len(tiles) :] = 0
        self.chooser.fill([part.stream for part in parts], [part.step for part in parts])
        self.parcel.send()
        self.chooser.begin()

    def _step(self) -> None:
        rows = self.rows
        hidden_N1D = self.model.hidden(rows.ids_B[:, None], rows.lengths_B[:, None], self.view)
        logits_BV = self.model.logits(hidden_N1D[:, 0].index_select(0, self.parcel.there["ends"]))
        self.chooser(logits_BV, self._next_ids_B, self._lengths_B)

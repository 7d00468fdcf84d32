"""Writes several tokens of every running answer before anybody looks at them.

A step of a small model takes less time than telling what came of it, so steps follow one another on
the device: each feeds its tokens to the next, and ids come back once per burst. What follows a stop
id or the end of an answer is thrown away, and what a row writes behind its blocks goes into a spare
one. On a GPU a step is a CUDA graph per number of rows, captured when first needed; rows are padded
to a power of two by rows that write into the spare block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from llm_core.infer.cache.paged import PagedCache
from llm_core.infer.choice.rows import RowChooser, Stream, chooser_fields
from llm_core.infer.decoders import Decoder, DecodeRows, make_decoder, one_pass_kernels
from llm_core.infer.parcel import Parcel
from llm_core.model.transformer import Transformer

# B rows · M blocks of a row at most


class Start(NamedTuple):
    """One row before a burst."""

    last_id: int
    length: int
    """Tokens before the last, whose keys are in the cache."""
    blocks: Sequence[int]
    """With room for all tokens of the burst that the row may still have."""
    step: int
    """Tokens that the answer has already."""
    stream: Stream


class Bursts:
    """Decode steps of one model and cache, for any number of rows."""

    def __init__(
        self, model: Transformer, cache: PagedCache, spare_block: int, most_told: int
    ) -> None:
        """spare_block: of nobody's. most_told: steps of a burst at most."""
        self.model, self.cache = model, cache
        self.spare_block, self.most_told = spare_block, most_told
        self.device = model.norm.weight.device
        # A row that has room for its longest sequence never needs a wider table.
        most = -(-model.config.max_seq_len // cache.block_tokens)
        if not model.config.common_window:  # with one, blocks are listed and held no longer
            most = min(most, cache.num_blocks)
        self.table_blocks = max(most, blocks_for(most_told, cache) + 1)
        self._batches: dict[int, _Batch] = {}

    def room(self, length: int) -> int:
        """Steps that a row may take behind `length` tokens, whatever blocks it has: positions and
        tables end somewhere."""
        end = min(self.model.config.max_seq_len, self.table_blocks * self.cache.block_tokens)
        return end - length

    def run(self, starts: Sequence[Start], count: int) -> list[list[int]]:
        """ids[row] of `count` steps; -1 where the logits of a row were not numbers."""
        return self._batch(len(starts)).run(starts, count)

    def warm_up(self, most_rows: int) -> None:
        """Capture the steps of all numbers of rows."""
        for size in {1 << (rows - 1).bit_length() for rows in range(1, most_rows + 1)}:
            self._batch(size)

    def _batch(self, rows: int) -> _Batch:
        size = 1 << (rows - 1).bit_length()
        if size not in self._batches:
            self._batches[size] = _Batch(self, size, self.most_told)
        return self._batches[size]


class _Batch:
    """Buffers and decoder of one number of rows, and on a GPU the graph of a step."""

    def __init__(self, bursts: Bursts, size: int, most_told: int) -> None:
        self.size, self.device, self.spare_block = size, bursts.device, bursts.spare_block
        self.block_tokens = bursts.cache.block_tokens
        fields = {
            "ids": ((size,), torch.int64),
            "lengths": ((size,), torch.int32),
            "tables": ((size, bursts.table_blocks), torch.int32),
            **chooser_fields(size),
        }
        self.parcel = Parcel(fields, self.device)
        self.parcel.here["tables"][:] = self.spare_block
        self.parcel.send()
        there = self.parcel.there
        self.rows = DecodeRows(there["ids"], there["lengths"], there["tables"])
        self.chooser = RowChooser(self.parcel, size, most_told, self.device)
        self.decoder: Decoder = make_decoder(bursts.model, bursts.cache, self.rows)
        self._replay = self._step
        if self.device.type == "cuda":
            with one_pass_kernels(bursts.model):
                self._replay = capture(self._step, self.device)

    def run(self, starts: Sequence[Start], count: int) -> list[list[int]]:
        self._fill(starts, count)
        for _ in range(count):
            self._replay()
        return self.chooser.told_BK[: len(starts), :count].tolist()  # type: ignore[no-any-return]

    def _fill(self, starts: Sequence[Start], count: int) -> None:
        here, end = self.parcel.here, len(starts)
        here["ids"][:end] = [start.last_id for start in starts]
        here["lengths"][:end] = [start.length for start in starts]
        here["ids"][end:] = here["lengths"][end:] = 0
        tables = here["tables"]
        for row, start in enumerate(starts):
            own = len(start.blocks)
            tables[row, :own] = start.blocks
            # Blocks that a row does not have, and those of rows behind the last, are nobody's.
            tables[row, own : (start.length + count) // self.block_tokens + 1] = self.spare_block
        tables[end:, : count // self.block_tokens + 1] = self.spare_block
        self.chooser.fill([start.stream for start in starts], [start.step for start in starts])
        self.parcel.send()
        self.chooser.begin()

    def _step(self) -> None:
        self.chooser(self.decoder(), self.rows.ids_B, self.rows.lengths_B)


def blocks_for(num_tokens: int, cache: PagedCache) -> int:
    return -(-num_tokens // cache.block_tokens)


def capture(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """What replays a step as a CUDA graph. The step is made twice, with whatever its buffers hold:
    the first compiles what is compiled on first use, and lets libraries take their working
    memory."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay

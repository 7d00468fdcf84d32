"""Writes several tokens of every running answer before anybody looks at them.

A step of a small model takes less time than telling what came of it, so steps follow one another on
the device: each feeds its tokens to the next, and ids come back once per burst. What follows a stop
id is thrown away. On a GPU a step is a CUDA graph per number of rows, captured when first needed;
rows are padded to a power of two by rows that write into a spare block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from llm_core.infer.choosing import Choosers, choose
from llm_core.infer.decoders import Decoder, DecodeRows, make_decoder
from llm_core.infer.paged import PagedCache
from llm_core.infer.sampling import GREEDY
from llm_core.model.transformer import Transformer

# B rows · M blocks of a row at most


@dataclass(frozen=True)
class Start:
    """One row before a burst."""

    last_id: int
    length: int
    """Tokens before the last, whose keys are in the cache."""
    blocks: Sequence[int]
    """With room for all tokens of the burst."""
    step: int
    """Tokens that the answer has already."""


class Bursts:
    """Decode steps of one model and cache, for any number of rows."""

    def __init__(self, model: Transformer, cache: PagedCache, spare_block: int) -> None:
        self.model, self.cache, self.spare_block = model, cache, spare_block
        self.device = model.norm.weight.device
        # A row that has room for its longest sequence never needs a wider table.
        most = -(-model.config.max_seq_len // cache.block_tokens)
        self.table_blocks = min(most, cache.num_blocks)
        self._batches: dict[int, _Batch] = {}

    def run(self, starts: Sequence[Start], choosers: Choosers, count: int) -> list[list[int]]:
        """ids[row] of `count` steps; -1 where the logits of a row were not numbers."""
        size = 1 << (len(starts) - 1).bit_length()
        if size not in self._batches:
            self._batches[size] = _Batch(self, size)
        return self._batches[size].run(starts, choosers, count)


class _Batch:
    """Buffers, decoder and graphs of one number of rows."""

    def __init__(self, bursts: Bursts, size: int) -> None:
        self.size, self.device, self.spare_block = size, bursts.device, bursts.spare_block
        self.rows = DecodeRows.empty(
            size, bursts.table_blocks, bursts.spare_block, torch.device(bursts.device)
        )
        self.steps_B = torch.zeros(size, dtype=torch.int64, device=self.device)
        self.chosen_B = torch.zeros(size, dtype=torch.int64, device=self.device)
        self.decoder: Decoder = make_decoder(bursts.model, bursts.cache, self.rows)
        self._graphs: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Choosers]] = {}

    def run(self, starts: Sequence[Start], choosers: Choosers, count: int) -> list[list[int]]:
        choosers = _padded(choosers, self.size)
        if self.device.type == "cuda":
            step = self._captured(choosers).replay
        else:

            def step() -> None:
                self._step(choosers)

        self._fill(starts)
        found = []
        for _ in range(count):
            step()
            found.append(self.chosen_B.clone())
        return torch.stack(found, dim=1)[: len(starts)].tolist()  # type: ignore[no-any-return]

    def _fill(self, starts: Sequence[Start]) -> None:
        spare = self.size - len(starts)
        width = self.rows.tables_BM.shape[1]
        tables = [
            [*start.blocks, *[self.spare_block] * (width - len(start.blocks))] for start in starts
        ]
        for buffer, values, rest in (
            (self.rows.ids_B, [start.last_id for start in starts], 0),
            (self.rows.lengths_B, [start.length for start in starts], 0),
            (self.steps_B, [start.step for start in starts], 0),
            (self.rows.tables_BM, tables, [self.spare_block] * width),
        ):
            buffer.copy_(torch.tensor([*values, *[rest] * spare], dtype=buffer.dtype))

    def _step(self, choosers: Choosers) -> None:
        chosen_B = choose(self.decoder(), choosers, self.steps_B)
        self.chosen_B.copy_(chosen_B)
        # An id that is none would be looked up in the embedding.
        self.rows.ids_B.copy_(chosen_B.clamp(min=0))
        self.rows.lengths_B.add_(1)
        self.steps_B.add_(1)

    def _captured(self, choosers: Choosers) -> torch.cuda.CUDAGraph:
        """A graph of one step that reads these choosers; few differ in more than numbers."""
        kind = tuple(value for value in _values(choosers).values() if not isinstance(value, Tensor))
        if kind not in self._graphs:
            own = replace(
                choosers,
                **{n: v.clone() for n, v in _values(choosers).items() if isinstance(v, Tensor)},
            )
            self._graphs[kind] = self._capture(own), own
        graph, own = self._graphs[kind]
        for name, value in _values(choosers).items():
            if isinstance(value, Tensor):
                getattr(own, name).copy_(value)
        return graph

    def _capture(self, choosers: Choosers) -> torch.cuda.CUDAGraph:
        self._fill([])
        # Compiles what is compiled on first use, and lets libraries take their working memory.
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step(choosers)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(choosers)
        return graph


def _values(choosers: Choosers) -> dict[str, object]:
    return {field.name: getattr(choosers, field.name) for field in fields(choosers)}


def _padded(choosers: Choosers, size: int) -> Choosers:
    """With greedy rows behind the others. top-k goes up to a power of two, which changes nothing
    and keeps graphs few."""
    largest_k = 1 << (choosers.largest_k - 1).bit_length() if choosers.largest_k else 0
    spare = size - len(choosers.seed_B)
    greedy = Choosers.of([GREEDY] * spare, [0] * spare, choosers.seed_B.device) if spare else None
    tensors = {
        name: value if greedy is None else torch.cat((value, getattr(greedy, name)))
        for name, value in _values(choosers).items()
        if isinstance(value, Tensor)
    }
    return replace(choosers, largest_k=largest_k, **tensors)

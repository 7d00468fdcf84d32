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

from llm_core.infer.cache.paged import PagedCache
from llm_core.infer.choice.choosing import Choosers, choose
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.decoders import Decoder, DecodeRows, make_decoder, one_pass_kernels
from llm_core.kernels.decode.choose import ChooseTokens
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

    def __init__(
        self, model: Transformer, cache: PagedCache, spare_block: int, most_told: int
    ) -> None:
        """spare_block: of nobody's. most_told: steps of a burst at most."""
        self.model, self.cache = model, cache
        self.spare_block, self.most_told = spare_block, most_told
        self.device = model.norm.weight.device
        # A row that has room for its longest sequence never needs a wider table.
        most = -(-model.config.max_seq_len // cache.block_tokens)
        self.table_blocks = max(min(most, cache.num_blocks), self.blocks_of_nobody)
        self._batches: dict[int, _Batch] = {}

    @property
    def blocks_of_nobody(self) -> int:
        """Places of a table that a row which nobody reads may come to in a burst."""
        return -(-self.most_told // self.cache.block_tokens) + 1

    def run(self, starts: Sequence[Start], choosers: Choosers, count: int) -> list[list[int]]:
        """ids[row] of `count` steps; -1 where the logits of a row were not numbers."""
        size = 1 << (len(starts) - 1).bit_length()
        if size not in self._batches:
            self._batches[size] = _Batch(self, size, self.most_told)
        return self._batches[size].run(starts, choosers, count)


class _Batch:
    """Buffers and decoder of one number of rows, and on a GPU the graph of a step."""

    def __init__(self, bursts: Bursts, size: int, most_told: int) -> None:
        self.size, self.device, self.spare_block = size, bursts.device, bursts.spare_block
        self.blocks_of_nobody = bursts.blocks_of_nobody
        self.rows = DecodeRows.empty(size, bursts.table_blocks, self.spare_block, self.device)
        self.steps_B = torch.zeros(size, dtype=torch.int64, device=self.device)
        self.told_BK = torch.zeros(size, most_told, dtype=torch.int64, device=self.device)
        self.num_told_B = torch.zeros(size, dtype=torch.int32, device=self.device)
        self.choosers = Choosers.of([GREEDY] * size, [0] * size, self.device)
        self.decoder: Decoder = make_decoder(bursts.model, bursts.cache, self.rows)
        self._graph: torch.cuda.CUDAGraph | None = None
        if self.device.type == "cuda":
            self._kernel = ChooseTokens(self.device)
            with one_pass_kernels(bursts.model):
                self._graph = self._capture()

    def run(self, starts: Sequence[Start], choosers: Choosers, count: int) -> list[list[int]]:
        self._fill(starts)
        self._take(choosers)
        for _ in range(count):
            if self._graph is not None:
                self._graph.replay()
            else:
                self._step_on_cpu()
        return self.told_BK[: len(starts), :count].tolist()  # type: ignore[no-any-return]

    def _fill(self, starts: Sequence[Start]) -> None:
        spare = self.size - len(starts)
        rows = self.rows
        # Blocks that a row does not have, and those of rows behind the last, are nobody's.
        width = max(self.blocks_of_nobody, *(len(start.blocks) for start in starts))
        nobody = [self.spare_block] * width
        tables = [[*start.blocks, *nobody[len(start.blocks) :]] for start in starts]
        for buffer, values, rest in (
            (rows.ids_B, [start.last_id for start in starts], 0),
            (rows.lengths_B, [start.length for start in starts], 0),
            (self.steps_B, [start.step for start in starts], 0),
            (rows.tables_BM[:, :width], tables, nobody),
        ):
            buffer.copy_(torch.tensor([*values, *[rest] * spare], dtype=buffer.dtype))
        self.num_told_B.zero_()

    def _take(self, choosers: Choosers) -> None:
        """Rows behind those of `choosers` keep what they had; nobody reads what they choose."""
        if self._graph is None:
            self.choosers = _padded(choosers, self.size)
            return
        for field in fields(choosers):
            value = getattr(choosers, field.name)
            if isinstance(value, Tensor):
                getattr(self.choosers, field.name)[: len(value)].copy_(value)

    def _step_on_cpu(self) -> None:
        chosen_B = choose(self.decoder(), self.choosers, self.steps_B)
        self.told_BK.scatter_(1, self.num_told_B.long()[:, None], chosen_B[:, None])
        self.num_told_B.add_(1)
        # An id that is none would be looked up in the embedding.
        self.rows.ids_B.copy_(chosen_B.clamp(min=0))
        self.rows.lengths_B.add_(1)
        self.steps_B.add_(1)

    def _step(self) -> None:
        given = self.choosers
        logits_BV = self.decoder().float()
        self._kernel(
            logits_BV, given.temperature_B1, given.top_k_B1, given.top_p_B1, given.min_p_B1,
            given.seed_B, given.choice_B, self.steps_B, self.rows.ids_B, self.rows.lengths_B,
            self.told_BK, self.num_told_B,
        )  # fmt: skip

    def _capture(self) -> torch.cuda.CUDAGraph:
        # Compiles what is compiled on first use, and lets libraries take their working memory.
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph


def _padded(choosers: Choosers, size: int) -> Choosers:
    """With greedy rows behind the others."""
    spare = size - len(choosers.seed_B)
    if not spare:
        return choosers
    greedy = Choosers.of([GREEDY] * spare, [0] * spare, choosers.seed_B.device)
    tensors = {
        field.name: torch.cat((value, getattr(greedy, field.name)))
        for field in fields(choosers)
        if isinstance(value := getattr(choosers, field.name), Tensor)
    }
    return replace(choosers, **tensors)

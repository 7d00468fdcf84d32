"""Reads the tokens of step N on rank R, a pure function of both.

A split is laid out in rows of `seq_len` targets (`llm_core.data.packing`), the samples. Epoch e
visits them in the order of a keyed bijection of [0, num_samples) (`llm_core.data.order`), which
needs no memory and no shuffle buffer; `sequential` visits them as stored and `random` draws each
anew. The global position p lies in epoch p // num_samples; a batch may cross an epoch border. With
a mixture (`llm_core.data.mixture`) each source has rows and epochs of its own. Rank and world only
choose rows of the global batch, so a run resumes at any data-parallel degree. How far a step is in
the sequence says `llm_core.data.ramp`.

Cost: a batch is read into the arrays it is given away in; the order is computed for some thousand
positions at once. Memory: none for `concat` without a mixture, else 24 bytes per document; 9 more
with several sources (`llm_core.data.sources`). Documents of a batch say what belongs together, for
attention masks. With `loss_on=assistant` the targets that the loss mask of the shards excludes are
ignored, as padding is.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from llm_core.config import ConfigError
from llm_core.data.batch import IGNORED, Batch
from llm_core.data.config import DataConfig
from llm_core.data.mixture import Mixture
from llm_core.data.order import draw, permute
from llm_core.data.packing import PackingShares, PlannedRows, StreamRows, join, make_plan, pairs
from llm_core.data.ramp import BatchSizes
from llm_core.data.shards import TokenShards
from llm_core.data.sources import NO_SOURCE, Sources, read_sources

ORDER_BLOCK = 4096
"""Most positions whose samples are computed together: one by one costs more than reading."""


# B rows of this rank · T places
class Loader:
    """Batches of one data-parallel rank: a run of each global batch, or every `world`-th row."""

    def __init__(
        self,
        shards: TokenShards,
        seq_len: int,
        batch_sizes: BatchSizes | int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        data: DataConfig | None = None,
    ) -> None:
        """batch_sizes: sequences of a global batch, where they are not always the same a
        schedule."""
        assert 0 <= rank < world
        self.sizes = BatchSizes(batch_sizes) if isinstance(batch_sizes, int) else batch_sizes
        for size in self.sizes.all:
            if size < 1 or size % world:
                raise ConfigError(
                    f"global_batch_sequences ({size}) must be a multiple of the data-parallel"
                    f" degree ({world}); try {max(1, size // world) * world}"
                )
        self.seq_len, self.seed, self._rank, self._world = seq_len, seed, rank, world
        self._data = data or DataConfig()
        self._shards = shards
        require_loss_mask(shards, self._data)
        # Losses of pairs are not sums over tokens, so they have none by source.
        self.sources = read_sources(shards) if self._data.packing != "pairs" else None
        self._rows: StreamRows | PlannedRows
        self._mixture: Mixture | None = None
        # Of pairs, once they are computed: float64, a row for each sample.
        self.references: np.ndarray | None = None
        if self._data.packing == "pairs":
            plan = pairs(*shards.document_bounds(), shards.rejected_starts(), seq_len)
            self._rows = PlannedRows(shards, seq_len, plan)
            require_pairs(shards, plan.num_rows, plan.num_cut_documents, seq_len)
        elif self._data.mixture:
            self._mix(seq_len)
        elif self._data.packing == "concat":
            self._rows = StreamRows(shards, seq_len)
        else:
            plan = make_plan(*shards.document_bounds(), seq_len, self._data.packing)
            self._rows = PlannedRows(shards, seq_len, plan)
        self.num_samples = self._rows.num_rows
        if self.num_samples == 0:
            raise ConfigError(
                f"seq_len ({seq_len}) needs at least {seq_len + 1} tokens, split {shards.split!r}"
                f" has {shards.num_tokens}; use a smaller seq_len or more text"
            )
        self._block_size = min(ORDER_BLOCK, max(self.num_samples, *self.sizes.all))
        self._order_block = functools.lru_cache(maxsize=4)(self._make_order_block)

    def shares(self) -> PackingShares:
        """What the packing costs; under a mixture every row counts once."""
        if isinstance(self._rows, PlannedRows):
            return self._rows.shares(self._shards.num_documents)
        return self._rows.shares()

    def sample_index(self, position: np.ndarray) -> np.ndarray:
        """The sample at each global position of the endless sequence of epochs."""
        position = np.asarray(position, np.int64)
        if self._mixture is None:
            return self._ordered(position, self.num_samples, "")
        source, number = self._mixture.locate(position)
        out = np.empty_like(position)
        for k in np.unique(source).tolist():
            begin, end = self._source_rows[k], self._source_rows[k + 1]
            out[source == k] = begin + self._ordered(
                number[source == k], end - begin, f" of {self._sources[k]}"
            )
        return out

    def batch(self, step: int) -> Batch:
        """The rows of this rank at a step, counted from a fresh start."""
        positions = self.sizes.before(step) + self._places(self.sizes.at(step))
        batch = self.rows(self._samples_at(positions))
        return batch._replace(numbers_B=torch.from_numpy(positions))

    def rows(self, samples: np.ndarray) -> Batch:
        """Some of the samples, in this order."""
        documents_BT = self._rows.documents(samples) if self._data.mask_documents else None
        ids_BT, targets_BT = self._rows.read(samples)
        if self._data.loss_on == "assistant":
            for k, place, start, stop in self._rows.stretches(samples):
                branches = self._data.packing == "pairs"
                learnt = self._shards.read_loss_mask(start, stop, branches)
                targets_BT[k, place : place + stop - start][~learnt] = IGNORED
        sources_BT = None
        if self.sources:
            sources_BT = self._sources_of(samples, self.sources)
            sources_BT[targets_BT == IGNORED] = NO_SOURCE
        references_B2 = None if self.references is None else self.references[samples]
        arrays = ids_BT, targets_BT, documents_BT, sources_BT, references_B2
        return Batch(*(None if x is None else torch.from_numpy(x) for x in arrays))  # type: ignore[arg-type]

    def _sources_of(self, samples: np.ndarray, sources: Sources) -> np.ndarray:
        out = np.full((len(samples), self.seq_len), NO_SOURCE, np.uint8)
        for k, place, start, stop in self._rows.stretches(samples):
            sources.fill(start, stop, out[k, place : place + stop - start])
        return out

    def _places(self, size: int) -> np.ndarray:
        """Of this rank's rows in a global batch of a size."""
        if self._data.ranks == "strided":
            return np.arange(self._rank, size, self._world)
        per_rank = size // self._world
        return np.arange(self._rank * per_rank, (self._rank + 1) * per_rank)

    def _samples_at(self, positions: np.ndarray) -> np.ndarray:
        """Samples of rising positions, from whole blocks of the order."""
        blocks = range(
            int(positions[0]) // self._block_size, int(positions[-1]) // self._block_size + 1
        )
        samples = np.concatenate([self._order_block(block) for block in blocks])
        return samples[positions - blocks[0] * self._block_size]

    def _make_order_block(self, block: int) -> np.ndarray:
        return self.sample_index(
            np.arange(block * self._block_size, (block + 1) * self._block_size)
        )

    def _ordered(self, position: np.ndarray, size: int, what: str) -> np.ndarray:
        """The row of [0, size) at each position of the endless sequence of epochs over them."""
        epoch, place = np.divmod(position, size)
        if self._data.order == "sequential":
            return place
        if self._data.order == "random":
            return draw(position, size, f"random samples{what} {self.seed}")
        out = np.empty_like(place)
        for e in np.unique(epoch):
            out[epoch == e] = permute(
                place[epoch == e], size, f"order of samples{what} {self.seed} {e}"
            )
        return out

    def _mix(self, seq_len: int) -> None:
        """Rows of each source by themselves, one source after another."""
        starts, stops = self._shards.document_bounds()
        self._sources, source_of = self._shards.document_sources()
        phases = [(self.sizes.before(step), weights) for step, weights in self._data.phases]
        self._mixture = Mixture(self._sources, phases, self.seed)
        plans = [
            make_plan(starts[source_of == k], stops[source_of == k], seq_len, self._data.packing)
            for k in range(len(self._sources))
        ]
        for source, plan in zip(self._sources, plans, strict=True):
            if plan.num_rows == 0 and any(weights.get(source, 0) > 0 for _, weights in phases):
                raise ConfigError(
                    f"mixture wants {source}, which has less than one row of seq_len ({seq_len});"
                    " lower seq_len, or set 0"
                )
        self._source_rows = np.cumsum([0] + [plan.num_rows for plan in plans]).tolist()
        self._rows = PlannedRows(self._shards, seq_len, join(plans))


def require_loss_mask(shards: TokenShards, data: DataConfig) -> None:
    """Raise ConfigError where the loss is asked of parts that the shards do not know."""
    if data.loss_on != "all" and not shards.has_loss_mask:
        raise ConfigError(
            f"loss_on ({data.loss_on}) needs shards with chats, split {shards.split!r} has none;"
            " read chats with source.text_kind=chat, or set loss_on=all"
        )
    if data.loss_on == "all" and shards.has_pairs:
        raise ConfigError(
            f"loss_on (all) would learn rejected answers, of which split {shards.split!r} has some;"
            " use train=dpo, or train=sft for the chosen ones"
        )


def require_pairs(shards: TokenShards, num_rows: int, num_too_long: int, seq_len: int) -> None:
    """Raise ConfigError where no pair of answers fits a row."""
    if num_rows:
        return
    if num_too_long:
        raise ConfigError(
            f"seq_len ({seq_len}) holds none of the {num_too_long} pairs of split"
            f" {shards.split!r}, each with both answers after their prompt; raise train.seq_len"
        )
    raise ConfigError(
        f"packing (pairs) needs pairs of answers, split {shards.split!r} has none; read records"
        " with chosen and rejected by source.text_kind=chat, or use train=sft"
    )

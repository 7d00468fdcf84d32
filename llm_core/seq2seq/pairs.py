"""Pairs of source and target from chats in token shards: the source is a chat up to its answer, and
the target is the answer."""

from __future__ import annotations

import numpy as np

from llm_core.config import ConfigError
from llm_core.data.order import permute
from llm_core.data.shards import TokenShards
from llm_core.seq2seq.batch import Pair, Seq2SeqBatch, lay_out, pack
from llm_core.seq2seq.config import Seq2SeqConfig


class Pairs:
    """Batches of one data-parallel rank, a pure function of the step.

    Rows hold pairs next to each other where they fit (`packed`), or one each. Each epoch visits
    all rows in an order of its own. Chats of several answers are not pairs; they, and pairs that do
    not fit, are left out and counted. Memory: a few numbers for each pair.
    """

    def __init__(
        self,
        shards: TokenShards,
        source_len: int,
        target_len: int,
        global_batch_sequences: int,
        model: Seq2SeqConfig,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        packed: bool = True,
    ) -> None:
        if not shards.has_loss_mask or shards.has_pairs:
            raise ConfigError(
                f"split {shards.split!r} has no chats with answers to learn; build it from records"
                " of chats, with source.text_kind=chat"
            )
        if global_batch_sequences < 1 or global_batch_sequences % world:
            raise ConfigError(
                f"global_batch_sequences ({global_batch_sequences}) must be a multiple of the"
                f" data-parallel degree ({world}); try"
                f" {max(1, global_batch_sequences // world) * world}"
            )
        shards.check_ids(model.vocab_size)
        self._shards, self._model, self._seed = shards, model, seed
        self._lengths, self._size = (source_len, target_len), global_batch_sequences
        self._rank, self._world = rank, world
        bounds = [
            _bounds(shards, start, stop, model.eos_id)
            for start, stop in zip(*map(np.ndarray.tolist, shards.document_bounds()), strict=True)
        ]
        whole = np.array([each for each in bounds if each is not None], np.int64).reshape(-1, 3)
        # Each side gets an end.
        source_lengths = whole[:, 1] - whole[:, 0] + 1
        target_lengths = whole[:, 2] - whole[:, 1] + 1
        fits = (source_lengths <= source_len) & (target_lengths <= target_len)
        self.num_left_out = len(bounds) - int(fits.sum())
        """Chats that are in no row."""
        if not fits.any():
            raise ConfigError(
                f"source_len ({source_len}) and target_len ({target_len}) hold none of the"
                f" {len(bounds)} chats of split {shards.split!r}; raise them"
            )
        self._bounds = whole[fits]
        rows = np.arange(len(self._bounds))
        if packed:
            rows = pack(source_lengths[fits], target_lengths[fits], source_len, target_len)
        self.num_rows = int(rows[-1]) + 1
        self._first = np.searchsorted(rows, np.arange(self.num_rows + 1))

    @property
    def num_pairs(self) -> int:
        return len(self._bounds)

    def batch(self, step: int) -> Seq2SeqBatch:
        """The rows of this rank: a run of those of the global batch."""
        size = self._size // self._world
        numbers = step * self._size + self._rank * size + np.arange(size)
        return self.rows(self._samples(numbers), numbers)

    def rows(self, samples: np.ndarray, numbers: np.ndarray) -> Seq2SeqBatch:
        """Some of the rows, in this order."""
        pairs = [
            [self._pair(k) for k in range(self._first[row], self._first[row + 1])]
            for row in samples.tolist()
        ]
        return lay_out(pairs, numbers, *self._lengths, self._model)

    def _samples(self, positions: np.ndarray) -> np.ndarray:
        epochs, places = np.divmod(positions, self.num_rows)
        out = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            key = f"{self._seed}:{epoch}"
            out[epochs == epoch] = permute(places[epochs == epoch], self.num_rows, key)
        return out

    def _pair(self, k: int) -> Pair:
        begin, middle, stop = self._bounds[k].tolist()
        end = [self._model.eos_id]
        return (
            np.concatenate([self._shards.read(begin, middle), end]),
            np.concatenate([self._shards.read(middle, stop), end]),
        )


def _bounds(shards: TokenShards, start: int, stop: int, eos_id: int) -> tuple[int, int, int] | None:
    """Where source and target of a chat begin and the target stops; None for a chat with no answer
    to learn, with several, or with nothing before it."""
    learnt = shards.read_loss_mask(start, stop)
    changes = np.flatnonzero(np.diff(learnt.astype(np.int8), prepend=0, append=0))
    if len(changes) != 2 or changes[0] == 0:
        return None
    middle, stop = start + int(changes[0]), start + int(changes[1])
    # The pair has an end of its own.
    return start, middle, stop - int(shards.read(stop - 1, stop)[0] == eos_id)

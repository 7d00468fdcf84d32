"""Which tokens are in step N on rank R? A pure function, with no state but a position.

The stream of a split is cut into samples of `seq_len` + 1 tokens, each starting at the last token of the one
before, so that every token is predicted once per epoch. Epoch e visits the samples in the order of a keyed
bijection of [0, num_samples) (`llm_core.order`), which needs no memory and no shuffle buffer. The global position p lies in
epoch p // num_samples; a batch may cross an epoch border. Rank and world only choose rows of the global batch, so a run
resumes at any data-parallel degree.

Left out: tokens after the last full sample (`num_dropped_tokens`), and any mask at document borders.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from llm_core.config import ConfigError
from llm_core.order import permute
from llm_core.shards import TokenShards


class Loader:
    """Batches of one data-parallel rank: rows [rank, rank + 1) · global_batch_sequences / world of each global batch.

    `batch(step)` is pure. `next_batch()` also moves on; `state_dict` holds {seed, epoch, consumed_samples},
    the same on every rank and for every world size.
    """

    def __init__(
        self, shards: TokenShards, seq_len: int, global_batch_sequences: int, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        assert 0 <= rank < world
        if global_batch_sequences < 1 or global_batch_sequences % world:
            raise ConfigError(
                f"global_batch_sequences ({global_batch_sequences}) must be a multiple of the data-parallel degree ({world}); "
                f"try {max(1, global_batch_sequences // world) * world}"
            )
        self.num_samples = max(0, shards.num_tokens - 1) // seq_len
        if self.num_samples == 0:
            raise ConfigError(
                f"seq_len ({seq_len}) needs at least {seq_len + 1} tokens, split {shards.split!r} has {shards.num_tokens}; "
                f"use a smaller seq_len or more text"
            )
        self.num_dropped_tokens = shards.num_tokens - 1 - self.num_samples * seq_len
        self.seq_len, self.global_batch_sequences, self.seed = seq_len, global_batch_sequences, seed
        self._shards = shards
        per_rank = global_batch_sequences // world
        self._rows = np.arange(rank * per_rank, (rank + 1) * per_rank)
        self._position = 0

    def sample_index(self, position: np.ndarray) -> np.ndarray:
        """The sample at each global position of the endless sequence of epochs."""
        epoch, place = np.divmod(np.asarray(position, np.int64), self.num_samples)
        out = np.empty_like(place)
        for e in np.unique(epoch):
            key = f"order of samples {self.seed} {e}"
            out[epoch == e] = permute(place[epoch == e], self.num_samples, key)
        return out

    def batch_at(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids_BT, targets_BT) of this rank, of the global batch that begins at a global position."""
        starts = self.sample_index(position + self._rows) * self.seq_len
        rows = np.stack([self._shards.read(int(s), int(s) + self.seq_len + 1) for s in starts])
        tokens_BS = torch.from_numpy(rows)
        return tokens_BS[:, :-1].contiguous(), tokens_BS[:, 1:].contiguous()

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids_BT, targets_BT) int64 of this rank at a step, counted from a fresh start."""
        return self.batch_at(step * self.global_batch_sequences)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.batch_at(self._position)
        self._position += self.global_batch_sequences
        return made

    def state_dict(self) -> dict[str, int]:
        epoch, consumed = divmod(self._position, self.num_samples)
        return {"seed": self.seed, "epoch": epoch, "consumed_samples": consumed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        if state["seed"] != self.seed:
            raise ConfigError(f"loader state has seed {state['seed']}, this run has {self.seed}; resume with the same seed")
        if state["consumed_samples"] > self.num_samples:
            raise ConfigError(
                f"loader state has {state['consumed_samples']} consumed samples, an epoch here has {self.num_samples}; "
                f"resume with the same shards and seq_len"
            )
        self._position = state["epoch"] * self.num_samples + state["consumed_samples"]

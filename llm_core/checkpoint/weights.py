"""Reads the whole weights of a checkpoint one after another, while its run may go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_core.checkpoint.folders import (
    Progress,
    damage_in,
    folder_of,
    hold,
    read_progress,
    steps_in,
)
from llm_core.checkpoint.index import CheckpointError, Index, read_index
from llm_core.checkpoint.reader import PieceFiles
from llm_core.tensor_files import DTYPES

MODEL = "model."
"""Before the names of weights, among those of all state."""


@dataclass(frozen=True)
class SavedWeights:
    """The weights of one checkpoint, which stays as long as it is open."""

    step: int
    folder: Path
    index: Index
    made_with: Mapping[str, Any]
    """What decided the run; empty where it does not say."""

    def each(self, kind: str | None = None) -> Iterator[tuple[str, Tensor]]:
        """(name, weight) of each; memory holds one. kind: of the optimizer state that is given in
        place of weights, where there is some after an update. Raises OSError."""
        files = PieceFiles(self.folder)
        is_updated = bool(self._whole("optimizer.num_updates", files) > 0)
        for name in self.index.tensors:
            if name.startswith(MODEL):
                weight = name.removeprefix(MODEL)
                state = f"optimizer.{weight}.{kind}"
                is_there = is_updated and state in self.index.tensors
                yield weight, self._whole(state if is_there else name, files)

    def _whole(self, name: str, files: PieceFiles) -> Tensor:
        entry = self.index.tensors[name]
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        box = tuple(range(size) for size in entry.shape)
        for rank, piece in self.index.pieces(name, box):
            files.fill(whole, box, rank, name, piece)
        return whole


@contextmanager
def open_weights(root: Path, step: int | None = None) -> Iterator[SavedWeights]:
    """The weights of a step, or of the newest one, checked by their digests.

    Raises CheckpointError where there is no such checkpoint, or it is damaged.
    """
    steps = steps_in(root)
    chosen = step if step is not None else max(steps, default=None)
    there = ", ".join(map(str, steps)) or "none"
    if chosen is None or chosen not in steps:
        what = "no checkpoint" if chosen is None else f"no checkpoint of step {chosen}"
        raise CheckpointError(f"{root} has {what}; there are: {there}")
    with ExitStack() as held:
        try:
            folder = held.enter_context(hold(root, chosen))
            progress = read_progress(root, chosen, patient=True)
            damage = progress if isinstance(progress, str) else None
            made_with: Mapping[str, Any] = {}
            if isinstance(progress, Progress):
                made_with = progress.made_with or {}
                files = range(progress.num_files)
                damage = damage_in(root, chosen, progress.index_digest, files)
            if damage is not None:
                raise CheckpointError(f"{folder} is damaged: {damage}; choose one of {there}")
            saved = SavedWeights(chosen, folder, read_index(folder), made_with)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{folder_of(root, chosen)} was removed while it was opened ({error}); choose a"
                " later step"
            ) from error
        yield saved

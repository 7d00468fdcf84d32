"""Reads the state of a run from files: each rank reads the pieces that its layout needs, into
place.

Only our own folders are loaded, after their digests were looked at. Cost: one piece in memory
beside the state; a rank of the layout that wrote a checkpoint opens its own file, and those of the
ranks that wrote what several have.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm_core.checkpoint.folders import data_file
from llm_core.checkpoint.index import (
    Box,
    CheckpointError,
    Index,
    coordinates_of,
    entries_of,
    make_index,
    overlap,
    read_index,
    within,
)
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local
from llm_core.parallel.ranks import Ranks


def read_into(state: dict[str, Tensor], layout: Layout, folder: Path, ranks: Ranks) -> None:
    """Fill tensors by name. Every rank must call it. Raises CheckpointError unless the folder holds
    this state and no more, and OSError where it cannot be read."""
    sizes, coordinates = coordinates_of(layout, ranks)
    own = make_index(entries_of(state), sizes, coordinates, ranks.hosts)
    there = read_index(folder)
    if difference := difference_to(own, there):
        raise CheckpointError(
            f"checkpoint {folder} is of another run: {difference}; give it the model, optim and"
            " train.dtype it was made with, or this run a work directory of its own"
        )
    boxes = {name: own.box(name, coordinates) for name in state}
    wanted: dict[int, list[tuple[str, Box]]] = defaultdict(list)
    for name, box in boxes.items():
        for rank, piece in there.pieces(name, box):
            wanted[rank].append((name, piece))
    files = PieceFiles(folder)
    for rank, pieces in wanted.items():
        for name, piece in pieces:
            files.fill(local(state[name]).detach(), boxes[name], rank, name, piece)


class PieceFiles:
    """The files of ranks in a folder, a few of them open."""

    MOST_OPEN = 64

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[int, safe_open] = {}

    def fill(self, target: Tensor, box: Box, rank: int, name: str, piece: Box) -> None:
        """Copy what a tensor, which has a box of a whole one, shares with the piece that a rank
        wrote. Raises OSError."""
        part, path = overlap(piece, box), self._folder / data_file(rank)
        try:
            if rank not in self._open:
                if len(self._open) == self.MOST_OPEN:
                    self._open.clear()
                self._open[rank] = safe_open(path, "pt")
            file = self._open[rank]
            found = file.get_slice(name)[within(part, piece)] if piece else file.get_tensor(name)
        except SafetensorError as error:
            # Its digest was right a moment ago.
            raise OSError(f"{path}: {error}") from error
        target[within(part, box)].copy_(found)


def difference_to(wanted: Index, there: Index) -> str | None:
    """The first tensor in order that a state has and a checkpoint has not, or in another shape, or
    the other way round."""
    for name in sorted(wanted.tensors.keys() | there.tensors.keys()):
        if name not in there.tensors:
            return f"it has no {name}"
        if name not in wanted.tensors:
            return f"it has {name}, which this run has not"
        ours, theirs = wanted.tensors[name].shape, there.tensors[name].shape
        if ours != theirs:
            return f"its {name} is {theirs}, that of this run {ours}"
    return None

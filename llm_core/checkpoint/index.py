"""Says where the pieces of a state lie in the files of a checkpoint, from the layout alone.

Each process writes one file. Which piece of a tensor it has follows from its coordinates in the
mesh and from the axes that cut the tensor; which of several with equal pieces writes theirs, from
the sizes of all tensors. So processes plan alike without a message, and the index has a line for a
tensor, none for a piece: its size does not depend on the number of processes. Only pipeline ranks
have tensors that others do not know. They show each other theirs, once for a layout.

A process that reads computes who wrote the pieces that it needs, and opens these files alone.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.distributed.tensor import DTensor

from llm_core.config import ConfigError, build, to_plain
from llm_core.json_files import UnreadableJson, dump_json, read_json
from llm_core.parallel.cuts import part_of
from llm_core.parallel.hosts.exchange import Hosts
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.tensor_files import DTYPES, NAMES

INDEX_FILE = "index.json"
AXES = ("pp", "dp_replicate", "dp_shard", "tp", "tp_row", "tp_depth")
"""Of the mesh of all processes, the outermost first; the last two only grids of tensor ranks
have."""
CUTTING = ("tp", "tp_row", "tp_depth", "dp_replicate", "dp_shard")
"""Axes that cut tensors, in the order in which they do: FSDP cuts what tensor ranks have left."""

Box = tuple[range, ...]
"""Part of a tensor: a run of each dim."""
Coordinates = tuple[int, ...]
"""Of a process, along `AXES`."""


class CheckpointError(ValueError):
    """A checkpoint that must not be loaded: of another model, or damaged."""


@dataclass(frozen=True)
class Entry:
    """Of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors names it."""
    cuts: tuple[tuple[str, int], ...] = ()
    """(axis, dim) of what cuts it, in the order of the cuts."""
    pp: int = 0
    """The pipeline rank that writes it."""
    copy: int = 0
    """Which of the processes with equal pieces writes, counted along the axes that do not cut."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype ({self.dtype}) must be one of {', '.join(DTYPES)}")
        if min((*self.shape, self.pp, self.copy)) < 0:
            raise ConfigError("sizes and numbers must not be negative")
        for axis, dim in self.cuts:
            if axis not in CUTTING or not 0 <= dim < len(self.shape):
                raise ConfigError(f"cuts has {axis} along dim {dim}, which no layout cuts")


@dataclass(frozen=True)
class Index:
    """Of all tensors of a checkpoint."""

    sizes: tuple[int, ...]
    """Processes along each of `AXES`, or of the first four."""
    tensors: dict[str, Entry]

    def __post_init__(self) -> None:
        if len(self.sizes) not in (4, len(AXES)) or min(self.sizes) < 1:
            raise ConfigError(
                f"sizes ({list(self.sizes)}) must be 4 or {len(AXES)}, each at least 1"
            )
        for name, entry in self.tensors.items():
            if {axis for axis, _ in entry.cuts} - set(self.axes):
                raise ConfigError(f"tensors.{name} is cut along axes without processes")
            if entry.pp >= self.sizes[0] or entry.copy >= math.prod(self._free_sizes(entry)):
                raise ConfigError(f"tensors.{name} is written by a process that is not there")

    @property
    def axes(self) -> tuple[str, ...]:
        return AXES[: len(self.sizes)]

    @property
    def world(self) -> int:
        return math.prod(self.sizes)

    def box(self, name: str, coordinates: Coordinates) -> Box:
        """The piece of a tensor that a process holds."""
        entry = self.tensors[name]
        box = [range(size) for size in entry.shape]
        for axis, dim in entry.cuts:
            at = AXES.index(axis)
            part = part_of(len(box[dim]), coordinates[at], self.sizes[at])
            box[dim] = box[dim][part.start : part.stop]
        return tuple(box)

    def writes(self, name: str, coordinates: Coordinates) -> bool:
        """Whether a process writes its piece of a tensor."""
        at = dict(zip(self.axes, coordinates, strict=True))
        return coordinates == self._writer(self.tensors[name], at)

    def pieces(self, name: str, wanted: Box) -> Iterator[tuple[int, Box]]:
        """(rank of the process that wrote it, box) of all pieces that a box overlaps."""
        entry = self.tensors[name]
        whole = tuple(range(size) for size in entry.shape)
        if all(len(run) for run in (*wanted, *whole)):
            for at, box in self._cut(whole, entry.cuts, wanted):
                writer = self._writer(entry, at)
                yield int(np.ravel_multi_index(writer, self.sizes)), box

    def _cut(
        self, box: Box, cuts: tuple[tuple[str, int], ...], wanted: Box
    ) -> Iterator[tuple[dict[str, int], Box]]:
        """(coordinates along the axes that cut, box); cost: that of the pieces it gives."""
        if not cuts:
            yield {}, box
            return
        (axis, dim), *rest = cuts
        run, size = box[dim], self.sizes[AXES.index(axis)]
        each = -(-len(run) // size)
        first = max(0, (wanted[dim].start - run.start) // each)
        last = min(size - 1, (min(wanted[dim].stop, run.stop) - 1 - run.start) // each)
        for number in range(first, last + 1):
            part = part_of(len(run), number, size)
            piece = (*box[:dim], run[part.start : part.stop], *box[dim + 1 :])
            for at, smaller in self._cut(piece, tuple(rest), wanted):
                yield {axis: number} | at, smaller

    def _writer(self, entry: Entry, at: Mapping[str, int]) -> Coordinates:
        """Who writes the piece at these coordinates along the axes that cut."""
        free = self.free_axes(entry)
        found = np.unravel_index(entry.copy, self._free_sizes(entry))
        chosen = dict(zip(free, map(int, found), strict=True)) | {"pp": entry.pp}
        return tuple(chosen[axis] if axis in chosen else at[axis] for axis in self.axes)

    def _free_sizes(self, entry: Entry) -> list[int]:
        return [self.sizes[AXES.index(axis)] for axis in self.free_axes(entry)]

    def free_axes(self, entry: Entry) -> list[str]:
        """Along which processes have equal pieces."""
        cutting = {axis for axis, _ in entry.cuts}
        return [axis for axis in self.axes if axis != "pp" and axis not in cutting]


def coordinates_of(layout: Layout, ranks: Ranks) -> tuple[tuple[int, ...], Coordinates]:
    """(processes along `AXES`, this one's place); without a mesh all processes hold the same."""
    if layout.mesh is None:
        return (1, ranks.world, 1, 1), (0, ranks.rank, 0, 0)
    found = layout.mesh.get_coordinate()
    assert layout.mesh.mesh_dim_names == AXES[: layout.mesh.ndim] and found is not None
    return tuple(layout.mesh.shape), tuple(found)


def entries_of(state: Mapping[str, Tensor]) -> dict[str, Entry]:
    """What this process knows of its tensors."""
    return {name: _entry(tensor) for name, tensor in state.items()}


def make_index(
    own: Mapping[str, Entry], sizes: tuple[int, ...], coordinates: Coordinates, hosts: Hosts
) -> Index:
    """The index of a state, the same on every process. With pipeline ranks all must call it."""
    of_ranks = [own]
    if (num_stages := sizes[0]) > 1:
        slot = None if any(coordinates[1:]) else coordinates[0]
        said = "" if slot is None else _packed(own)
        of_ranks = [_unpacked(text) for text in hosts.collect(slot, said, num_stages)]
    tensors: dict[str, Entry] = {}
    for pp, entries in enumerate(of_ranks):
        # A tied weight that a pipeline has twice is written by the first.
        tensors = {name: replace(entry, pp=pp) for name, entry in entries.items()} | tensors
    index = build(Index, {"sizes": sizes, "tensors": tensors})
    share_out(index)
    return index


def _entry(tensor: Tensor) -> Entry:
    cuts: dict[str, int] = {}
    if isinstance(tensor, DTensor):
        names = tensor.device_mesh.mesh_dim_names or ()
        for axis, placement in zip(names, tensor.placements, strict=True):
            if not placement.is_replicate():
                cuts[axis] = placement.dim  # type: ignore[attr-defined]
    ordered = tuple((axis, cuts[axis]) for axis in CUTTING if axis in cuts)
    return Entry(tuple(tensor.shape), NAMES[tensor.dtype], ordered)


def share_out(index: Index) -> None:
    """Choose who writes what several have, the largest first, each to who has least so far."""
    sizes = index.sizes
    written = np.zeros(sizes)
    num_bytes = {
        name: math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        for name, entry in index.tensors.items()
    }
    for name in sorted(index.tensors, key=lambda name: (-num_bytes[name], name)):
        entry = index.tensors[name]
        free = [AXES.index(axis) for axis in index.free_axes(entry)]
        cutting = tuple(at for at in range(1, len(sizes)) if at not in free)
        # Those that write together are one row: its fullest member counts.
        rows = np.moveaxis(written[entry.pp : entry.pp + 1], free, range(1, 1 + len(free)))
        rows = rows.reshape(math.prod(sizes[at] for at in free), -1)
        copy = int(rows.max(axis=1).argmin())
        chosen = np.unravel_index(copy, [sizes[at] for at in free])
        place: list[int | slice] = [entry.pp, *(slice(None) for _ in sizes[1:])]
        for at, number in zip(free, chosen, strict=True):
            place[at] = int(number)
        written[tuple(place)] += num_bytes[name] / math.prod(sizes[at] for at in cutting)
        index.tensors[name] = replace(entry, copy=copy)


def _packed(entries: Mapping[str, Entry]) -> str:
    """As text for the store: names repeat, so a tenth of the JSON is left."""
    text = json.dumps({name: to_plain(entry) for name, entry in entries.items()})
    return zlib.compress(text.encode()).hex()


def _unpacked(text: str) -> dict[str, Entry]:
    found = json.loads(zlib.decompress(bytes.fromhex(text)))
    return {name: build(Entry, entry) for name, entry in found.items()}


def dump_index(index: Index) -> str:
    return dump_json(INDEX_FILE, to_plain(index))


def read_index(folder: Path) -> Index:
    """The index of a checkpoint. Raises CheckpointError where it is damaged, and OSError where it
    cannot be read, which is not damage."""
    try:
        return build(Index, read_json(folder / INDEX_FILE))
    except (UnreadableJson, ConfigError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"index of checkpoint {folder} is damaged; restore or delete the checkpoint ({error})"
        ) from error


def overlap(one: Box, other: Box) -> Box:
    """What two boxes share; runs may be empty."""
    return tuple(
        range(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))
        for a, b in zip(one, other, strict=True)
    )


def within(part: Box, whole: Box) -> tuple[slice, ...]:
    """A part of a box as slices of the tensor that holds the box."""
    return tuple(
        slice(p.start - w.start, p.stop - w.start) for p, w in zip(part, whole, strict=True)
    )

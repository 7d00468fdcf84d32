"""Writes the state of a run to files: plans of torch.distributed.checkpoint, made once, carried out
by each rank alone.

`dcp.save` meets other ranks at every turn, so it cannot run beside training, which meets them too.
Its steps can: a plan says which rank writes what (a collective call, repeated only when names,
shapes or the layout change), writing touches only this rank's file, and the index is made of what
all have written (a second collective call, of some kB). Between the two calls a thread may write.

Cost of copying first: the part of the state that this rank writes, once, in buffers that are kept;
pinned where it is on a GPU.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from llm_core.checkpoint.folders import digest_pieces
from llm_core.parallel.places import local
from llm_core.parallel.ranks import Ranks

State = dict[str, Tensor]
"""Whole tensors, or DTensors of which this rank has a part, by global names."""


@dataclass(frozen=True)
class Written:
    """What one rank has put into a folder."""

    results: list[WriteResult]
    files: dict[str, tuple[int, str]]
    """Name → (bytes, digest)."""


class Writer:
    """Writes this rank's part of a state; one at a time."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._planned_for: list[tuple[Any, ...]] = []
        self._plan = SavePlan([])
        self._metadata = Metadata({})
        self._planner = _Planner()
        self._buffers: State = {}

    def take(self, state: State, copy: bool) -> None:
        """Take the state to write: as it is now with `copy`, else as it is then. Collective."""
        signature = [
            (name, tensor.shape, tensor.dtype, _place(tensor)) for name, tensor in state.items()
        ]
        if signature != self._planned_for:
            self._make_plan(state)
            self._planned_for = signature
        names = {item.index.fqn for item in self._plan.items}
        mine = {name: local(tensor).detach() for name, tensor in state.items() if name in names}
        self._planner.held = self._copy(mine) if copy else mine

    def write(self, folder: Path) -> Written:
        """Put what was taken into this rank's file, synced. Meets no other rank."""
        if self._planner.copied is not None:
            self._planner.copied.synchronize()
        results = _storage(folder).write_data(self._plan, self._planner).wait()
        files = [folder / name for name in {one.storage_data.relative_path for one in results}]
        found = {file.name: (file.stat().st_size, digest_pieces(file)) for file in sorted(files)}
        return Written(results, found)

    def write_index(self, folder: Path, written: list[Written]) -> dict[str, tuple[int, str]]:
        """Finish a folder on one rank, from what all have written; its files."""
        storage = _storage(folder)
        storage.finish(self._metadata, [one.results for one in written])
        index = storage.path / ".metadata"
        files = {name: facts for one in written for name, facts in one.files.items()}
        return files | {index.name: (index.stat().st_size, digest_pieces(index))}

    def _make_plan(self, state: State) -> None:
        """Every rank learns all plans and concludes the same: what several have, one writes."""
        planner, storage = _Planner(), _storage(Path("unused"))
        planner.set_up_planner(state, is_coordinator=self._ranks.is_first)
        plans = gather_objects(planner.create_local_plan(), self._ranks)
        plans, self._metadata = planner.create_global_plan(plans)
        self._plan = planner.finish_plan(storage.prepare_global_plan(plans)[self._ranks.rank])
        planner.state_dict = {}
        self._planner, self._buffers = planner, {}

    def _copy(self, tensors: State) -> State:
        pin = self._ranks.device.type == "cuda"
        for name, tensor in tensors.items():
            if name not in self._buffers:
                self._buffers[name] = torch.empty(
                    tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pin
                )
            self._buffers[name].copy_(tensor, non_blocking=pin)
        if pin:
            # Steps that come after on this stream wait for the copies, the thread that writes waits
            # for this event.
            self._planner.copied = torch.cuda.Event()
            self._planner.copied.record()
        return self._buffers


class _Planner(dcp.DefaultSavePlanner):
    """Plans by the shapes of the whole state; gives out this rank's parts as they are written."""

    held: State
    copied: Any = None

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.held[index.fqn]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where the part of this rank lies in a tensor."""
    return (tensor.placements, tensor.device_mesh) if isinstance(tensor, DTensor) else ()


def gather_objects(value: Any, ranks: Ranks) -> list[Any]:
    """What each rank has, in order of ranks. Devices go on meanwhile."""
    if ranks.world == 1:
        return [value]
    found: list[Any] = [None] * ranks.world
    dist.all_gather_object(found, value, group=ranks.hosts)
    return found


def _storage(folder: Path) -> dcp.FileSystemWriter:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        return dcp.FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)

"""Writes this process's part of a state to a file, which meets no other process: a thread may.

Which part that is, `llm_core.checkpoint.index` says, once for a layout. Cost of copying first: the
part of the state that this process writes, once, in buffers that are kept; pinned where it is on a
GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from llm_core.checkpoint.folders import data_file, write_facts
from llm_core.checkpoint.index import Index, coordinates_of, entries_of, make_index
from llm_core.durable import sync_file
from llm_core.parallel.layout import Layout
from llm_core.parallel.places import local
from llm_core.parallel.ranks import Ranks
from llm_core.tensor_files import facts_of, write_tensors

State = dict[str, Tensor]
"""Whole tensors, or DTensors of which this rank has a part, by global names."""


class Writer:
    """Writes this rank's part of a state; one at a time."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._planned_for: list[tuple[Any, ...]] = []
        self._names: list[str] = []
        self._held: State = {}
        self._buffers: State = {}
        self._copied: Any = None
        self.index: Index = Index((1, 1, 1, 1), {})
        """Of what was taken last."""

    def take(self, state: State, layout: Layout, copy: bool) -> None:
        """Take the state to write: as it is now with `copy`, else as it is then. All ranks must
        call it."""
        sizes, coordinates = coordinates_of(layout, self._ranks)
        signature = [
            (name, tensor.shape, tensor.dtype, _place(tensor)) for name, tensor in state.items()
        ]
        if (planned_for := [(sizes, coordinates), *signature]) != self._planned_for:
            own = entries_of(state)
            self.index = make_index(own, sizes, coordinates, self._ranks.hosts)
            self._names = [name for name in state if self.index.writes(name, coordinates)]
            self._planned_for, self._buffers = planned_for, {}
        pieces = {name: local(state[name]).detach() for name in self._names}
        for name, piece in pieces.items():
            shape = tuple(map(len, self.index.box(name, coordinates)))
            assert tuple(piece.shape) == shape, f"{name} is {tuple(piece.shape)}, not {shape}"
        mine = {name: piece for name, piece in pieces.items() if piece.numel()}
        self._held = self._copy(mine) if copy else mine

    def write(self, folder: Path, step: int) -> None:
        """Put what was taken into this rank's file, synced, and say what the file holds."""
        if self._copied is not None:
            self._copied.synchronize()
        path = folder / data_file(self._ranks.rank)
        facts = {name: facts_of(tensor) for name, tensor in self._held.items()}
        write_tensors(path, facts, self._held.__getitem__)
        sync_file(path)
        write_facts(path, step)

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
            self._copied = torch.cuda.Event()
            self._copied.record()
        return self._buffers


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where the part of this rank lies in a tensor."""
    return (tensor.placements, tensor.device_mesh) if isinstance(tensor, DTensor) else ()

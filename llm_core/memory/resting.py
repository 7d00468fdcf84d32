"""Lets shards of weights rest in a file of a local disk, and reads a block before its pass.

Parameters on NVMe, after ZeRO-Infinity (Rajbhandari et al., 2021). The file has the weights as they
are updated, whose pages come by with those of the optimizer's state (`llm_core.optim.offload`).
Where training computes in 16 bits it has a copy in these as well, which passes read and the update
writes; else passes read the weights. FSDP gathers a unit at a time. When it asks for one, the next
is read: the block above on the way up, the block below on the way down. Embedding, norm and head
are a unit with a buffer of its own; blocks take turns in two.

Whoever looks at the weights between steps, as checkpoints do, finds them mapped into memory.
Gradients are in main memory. Left out: gradients on the disk, several disks, and reading ahead from
one micro batch to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from llm_core.compat import FSDPParam, fsdp_params
from llm_core.memory.backing import WEIGHTS, Extent, OnDisk, allocate, padded


@dataclass(frozen=True)
class Home:
    """Where a shard lies: first bytes in the file of the shard and of its copy (None: it has none),
    the unit that gathers it, and its first byte there."""

    begin: int
    copy_begin: int | None
    unit: int
    in_unit: int


class RestingWeights:
    """All shards of this process. Raises ConfigError where the folder cannot take them."""

    @torch.no_grad()
    def __init__(
        self, units: Sequence[FSDPModule], folder: Path, half: torch.dtype | None, on_gpu: bool
    ) -> None:
        """units: the root, then the blocks. half: of the copies; None: passes read the weights."""
        self.half, self._on_gpu = half, on_gpu
        self._units = [fsdp_params(unit) for unit in units]
        self._homes: dict[FSDPParam, Home] = {}
        self._extents: list[Extent] = []
        """Of what passes read, by unit."""
        self.backing = OnDisk(self._place(), folder, WEIGHTS)
        for param, home in self._homes.items():
            self._lay(param, home)
        self._by_weight = {param.sharded_param: home for param, home in self._homes.items()}
        self._is_clean = False
        sizes = [end - begin for begin, end in self._extents]
        self._buffers = [
            allocate(size, pinned=on_gpu) for size in (sizes[0], *2 * [max(sizes[1:])])
        ]
        self._held: list[tuple[int, Future[None]] | None] = [None] * len(self._buffers)
        self._used: list[Any] = [None] * len(self._buffers)
        self._last = 0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="weights")

    def _place(self) -> int:
        """Give each shard and copy its room, those of a unit side by side; the bytes of all."""
        end = 0
        begins: dict[FSDPParam, int] = {}
        for unit in self._units:
            first = end
            for param in unit:
                begins[param] = end
                end += padded(_size(param) * param.sharded_param.itemsize)
            self._extents.append((first, end))
        if self.half is None:
            for number, unit in enumerate(self._units):
                for param in unit:
                    offset = begins[param] - self._extents[number][0]
                    self._homes[param] = Home(begins[param], None, number, offset)
            return end
        for number, unit in enumerate(self._units):
            first = end
            for param in unit:
                self._homes[param] = Home(begins[param], end, number, end - first)
                end += padded(_size(param) * self.half.itemsize)
            self._extents[number] = first, end
        return end

    def _lay(self, param: FSDPParam, home: Home) -> None:
        """Have FSDP keep the shard in the file, and take what it gathers from there."""
        shard_N = self._view(home.begin, _size(param), param.sharded_param.dtype)
        dim, local = param.fsdp_placement.dim, param.sharded_param._local_tensor
        rows = local.size(dim) if local.numel() else 0
        param._sharded_param_data = shard_N
        param.sharded_param._local_tensor = shard_N.view(param.padded_sharded_param_size).narrow(
            dim, 0, rows
        )
        # FSDP has no hook of its own between asking for a unit and gathering it.
        param.__class__ = _FromDisk
        param.resting = self

    def settle(self) -> None:
        """Before weights are used where they are mapped, as by a checkpoint, which may change
        them."""
        self._is_clean = False

    def home(self, weight: nn.Parameter) -> Home:
        return self._by_weight[weight]

    @property
    def num_bytes(self) -> int:
        """Of the buffers in main memory."""
        return sum(map(len, self._buffers))

    def take(self, param: FSDPParam) -> Tensor:
        """What FSDP gathers of a shard, on the device; valid until another unit is asked for."""
        home = self._homes[param]
        if param is self._units[home.unit][0]:
            self._turn_to(home.unit)
        slot, dtype = self._slot(home.unit), self.half or param.sharded_param.dtype
        end = home.in_unit + _size(param) * dtype.itemsize
        values_N = self._buffers[slot][home.in_unit : end].view(dtype)
        if self._on_gpu:
            values_N = values_N.to(param.device, non_blocking=True)
            self._used[slot] = torch.cuda.current_stream(param.device).record_event()
        return values_N

    def _turn_to(self, number: int) -> None:
        self._note_changes()
        self._read(number).result()
        top = len(self._units) - 1
        # The highest block is asked for at the end of forward and at the beginning of backward.
        rises = number == 0 or (number >= self._last and number < top)
        following = number + 1 if rises else number - 1
        if 0 < following <= top:
            self._read(following)
        self._last = number

    def _read(self, number: int) -> Future[None]:
        """Begin to read a unit, unless it is there."""
        slot = self._slot(number)
        held = self._held[slot]
        if held is not None and held[0] == number:
            return held[1]
        used = self._used[slot]

        def read() -> None:
            if used is not None:  # copies to the device may not be done
                used.synchronize()
            self.backing.read([self._extents[number]], self._buffers[slot])

        future = self._reader.submit(read)
        self._held[slot] = number, future
        return future

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around changes of the file past the map; afterwards the first unit is read ahead."""
        self._note_changes()
        self._forget()
        yield
        self._read(0)

    def _note_changes(self) -> None:
        """Make copies again and let nothing stay in memory, if weights may have been changed."""
        if self._is_clean:
            return
        self._forget()
        file = self.backing.bytes_N.untyped_storage().data_ptr()
        with torch.no_grad():
            for param, home in self._homes.items():
                shard = param.sharded_param._local_tensor
                assert shard.untyped_storage().data_ptr() == file, "FSDP has moved a shard"
                if home.copy_begin is not None and self.half is not None:
                    copy_N = self._view(home.copy_begin, _size(param), self.half)
                    copy_N.copy_(param._sharded_param_data)
        self.backing.leave_cache()
        self._is_clean = True

    def _forget(self) -> None:
        for held in self._held:
            if held is not None:
                held[1].result()
        self._held = [None] * len(self._held)

    def _view(self, begin: int, size: int, dtype: torch.dtype) -> Tensor:
        return self.backing.bytes_N[begin : begin + size * dtype.itemsize].view(dtype)

    @staticmethod
    def _slot(number: int) -> int:
        return 0 if number == 0 else 1 + number % 2


class _FromDisk(FSDPParam):  # type: ignore[misc, valid-type]
    resting: RestingWeights

    @property
    def all_gather_inputs(self) -> list[Tensor]:
        return [self.resting.take(self)]


def _size(param: FSDPParam) -> int:
    """Elements of a shard, with those that make shards of all processes equal."""
    return int(param.padded_sharded_param_size.numel())

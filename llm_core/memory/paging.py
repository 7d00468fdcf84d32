"""Lets tensors that lie elsewhere take part in an update: some at a time, while others come and go
beside it.

A page is what takes part at once. It is read into a buffer while the page before is updated and the
one before that is written back, so three buffers are all the room that tensors take where they are
updated: those of pages of a file in main memory (the paging of ZeRO-Infinity, Rajbhandari et al.,
2021), those of pages for a GPU there, in copies on streams of their own. Between updates tensors
are views of where they lie. Left out: several disks, and reading ahead during backward.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llm_core.memory.backing import ALIGNMENT, Extent, InMemory, OnDisk, allocate, padded

NUM_BUFFERS = 3
"""One that fills, one in use, one that empties."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A tensor, its shape in use, and its first byte in the backing, a multiple of `ALIGNMENT`."""

    tensor: Tensor
    shape: torch.Size
    begin: int
    is_made: bool = False
    """Whether its turn writes all of it, so that a disk need not be read; such come last."""


class Page:
    """Tensors that are updated together; `extents` is where they lie."""

    def __init__(self, placed: Sequence[Placed], bytes_N: Tensor) -> None:
        self._placed, self._offsets = list(placed), list[int]()
        self.extents: list[Extent] = []
        self.num_bytes, self._num_read = 0, 0
        for one in placed:
            self._offsets.append(self.num_bytes)
            size = padded(one.shape.numel() * one.tensor.itemsize)
            self.num_bytes += size
            begins_made = one.is_made and self._num_read == len(self.extents)
            if self.extents and self.extents[-1][1] == one.begin and not begins_made:
                self.extents[-1] = (self.extents[-1][0], one.begin + size)
            else:
                self.extents.append((one.begin, one.begin + size))
            if not one.is_made:
                self._num_read = len(self.extents)
        self.chunks = [bytes_N[begin:end] for begin, end in self.extents]
        self._places = [self._view(one, bytes_N, one.begin) for one in placed]
        self.leave()

    @property
    def read_extents(self) -> list[Extent]:
        """Where those lie that are not made in its turn."""
        return self.extents[: self._num_read]

    def enter(self, buffer_N: Tensor) -> None:
        """Let the tensors lie in a buffer that holds the page."""
        places = zip(self._placed, self._offsets, strict=True)
        self._lay([self._view(one, buffer_N, begin) for one, begin in places])

    def leave(self) -> None:
        """Let the tensors lie where they rest."""
        self._lay(self._places)

    @staticmethod
    def _view(one: Placed, bytes_N: Tensor, begin: int) -> Tensor:
        own_N = bytes_N[begin : begin + one.shape.numel() * one.tensor.itemsize]
        return own_N.view(one.tensor.dtype).view(one.shape)

    def _lay(self, places: Sequence[Tensor]) -> None:
        for one, place in zip(self._placed, places, strict=True):
            one.tensor.data = place


class Lanes:
    """Buffers on a device, and streams on which copies run beside its work; plain on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.on_gpu = device, device.type == "cuda"
        self._buffers: list[Tensor] = []
        self._free: list[Any] = [None] * NUM_BUFFERS
        self._there, self._back = (
            torch.cuda.Stream(device) if self.on_gpu else None for _ in range(2)
        )

    def make_room(self, num_bytes: int, count: int) -> None:
        self._buffers = [
            torch.empty(num_bytes, dtype=torch.uint8, device=self._device) for _ in range(count)
        ]
        if self._there is not None:  # what used this memory before may not be done
            self._there.wait_stream(torch.cuda.current_stream(self._device))

    @property
    def num_bytes(self) -> int:
        """Of all buffers."""
        return sum(buffer.numel() for buffer in self._buffers)

    def bring(self, number: int, chunks: Sequence[Tensor]) -> Tensor:
        """A buffer that will hold the chunks in turn, for work given to the device from now on."""
        slot = number % len(self._buffers)
        buffer, free = self._buffers[slot], self._free[slot]
        with self._on(self._there):
            if free is not None:
                free.wait(self._there)
            self._copy(chunks, buffer, to_buffer=True)
        if self._there is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._there)
        return buffer

    def send(self, number: int, chunks: Sequence[Tensor]) -> Any:
        """Copy this page's buffer to its chunks after the work so far; an event, None if done."""
        slot = number % len(self._buffers)
        if self._back is not None:
            self._back.wait_stream(torch.cuda.current_stream(self._device))
        with self._on(self._back):
            self._copy(chunks, self._buffers[slot], to_buffer=False)
            self._free[slot] = None if self._back is None else self._back.record_event()
        return self._free[slot]

    def wait(self) -> None:
        """Until everything that was sent has arrived."""
        if self._back is not None:
            self._back.synchronize()

    def _copy(self, chunks: Sequence[Tensor], buffer: Tensor, to_buffer: bool) -> None:
        sizes = [len(chunk) for chunk in chunks]
        for chunk, part in zip(chunks, buffer[: sum(sizes)].split(sizes), strict=True):
            target, source = (part, chunk) if to_buffer else (chunk, part)
            target.copy_(source, non_blocking=True)

    def _on(self, stream: Any) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


class Pager:
    """Pages of tensors that are zeros; lanes: to the device of the update, None: main memory."""

    def __init__(
        self,
        pages: Sequence[Sequence[Placed]],
        backing: InMemory | OnDisk,
        lanes: Lanes | None = None,
    ) -> None:
        self.pages = [Page(placed, backing.bytes_N) for placed in pages]
        self.backing, self._lanes = backing, lanes
        self._file = backing if isinstance(backing, OnDisk) else None
        self.waited_s = 0.0
        """For what came from the disk or went there."""
        self._is_clean = self._file is not None
        size = max((page.num_bytes for page in self.pages), default=0)
        count = min(NUM_BUFFERS, len(self.pages))
        if lanes is not None:
            lanes.make_room(max(ALIGNMENT, size), max(1, count))
        if self._file is not None:
            self._buffers = [
                allocate(size, pinned=lanes is not None and lanes.on_gpu) for _ in range(count)
            ]
            # One thread each, so that a page is read while another is written.
            self._reader, self._writer = (
                ThreadPoolExecutor(1, thread_name_prefix="pager") for _ in range(2)
            )

    @property
    def device_bytes(self) -> int:
        """What pages take where the weights are."""
        if self._lanes is not None:
            return self._lanes.num_bytes
        return sum(map(len, self._buffers)) if self._file is not None else len(self.backing.bytes_N)

    def turns(self) -> Iterator[int]:
        """The number of each page while its tensors can be used; changes in its turn are kept."""
        if self._file is None:
            yield from self._turns_in_memory()
        else:
            yield from self._turns_on_disk(self._file)

    def settle(self) -> None:
        """Before tensors are used where they rest, as by a checkpoint: let copies arrive."""
        if self._lanes is not None:
            self._lanes.wait()
        self._is_clean = False

    def _turns_in_memory(self) -> Iterator[int]:
        for number, page in enumerate(self.pages):
            if self._lanes is None:
                yield number
                continue
            page.enter(self._lanes.bring(number, page.chunks))
            try:
                yield number
            finally:
                page.leave()
            self._lanes.send(number, page.chunks)

    def _turns_on_disk(self, file: OnDisk) -> Iterator[int]:
        # What was written through the map must be on the disk before it is read past the cache.
        if not self._is_clean:
            file.leave_cache()
            self._is_clean = True
        writes: list[Future[None]] = []
        reads = [self._read_ahead(file, 0, writes)] if self.pages else []
        for number, page in enumerate(self.pages):
            buffer = self._wait_for(reads[number])
            if number + 1 < len(self.pages):
                reads.append(self._read_ahead(file, number + 1, writes))
            parts = [buffer[: page.num_bytes]]
            page.enter(buffer if self._lanes is None else self._lanes.bring(number, parts))
            try:
                yield number
            finally:
                page.leave()
            sent = None if self._lanes is None else self._lanes.send(number, parts)
            writes.append(self._writer.submit(self._write, file, page, buffer, sent))
        for write in writes:
            self._wait_for(write)

    def _read_ahead(
        self, file: OnDisk, number: int, writes: Sequence[Future[None]]
    ) -> Future[Tensor]:
        count = len(self._buffers)

        def read() -> Tensor:
            if number >= count:  # the page that was in the buffer is to be in its file
                writes[number - count].result()
            file.read(self.pages[number].read_extents, self._buffers[number % count])
            return self._buffers[number % count]

        return self._reader.submit(read)

    @staticmethod
    def _write(file: OnDisk, page: Page, buffer: Tensor, sent: Any) -> None:
        if sent is not None:
            sent.synchronize()
        file.write(page.extents, buffer)

    def _wait_for(self, done: Future[Any]) -> Any:
        began = time.perf_counter()
        result = done.result()
        self.waited_s += time.perf_counter() - began
        return result

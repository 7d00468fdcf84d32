"""Holds bytes that the device has no room for, in main memory or in a file of a local disk.

Both are one run of bytes that starts as zeros and that tensors are views of, so that checkpoints
save and load those as they do any. The file has no name: it goes with the process, however that
ends, and several runs may use one folder. Its space is taken at the start, so a disk that is too
small says so before the first step. It is read and written past the kernel's cache where the file
system can (O_DIRECT), so that memory stays free; elsewhere the kernel decides what stays in it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from llm_core.compat import pin, unpin
from llm_core.config import ConfigError

ALIGNMENT = 4096
"""Bytes to a multiple of which all ranges begin and end: direct I/O takes no others."""

Extent = tuple[int, int]
"""First byte, and the one after the last."""


class PagingFailed(OSError):
    """State or weights could not be read from their disk, or not written."""


def padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def allocate(num_bytes: int, pinned: bool = False) -> Tensor:
    """Bytes in main memory, aligned to its pages; a GPU can copy pinned ones while it computes."""
    if pinned:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    memory = mmap.mmap(-1, max(ALIGNMENT, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8)[:num_bytes]


class InMemory:
    """Bytes in main memory. Raises ConfigError where memory is short."""

    def __init__(self, num_bytes: int, pinned: bool) -> None:
        try:
            self.bytes_N = allocate(num_bytes)
            if pinned and num_bytes:
                # Not torch's pinned memory, which comes in powers of two: of state that may be half
                # the machine's.
                pin(self.bytes_N)
                weakref.finalize(self, unpin, self.bytes_N.data_ptr())
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"optim.state_in (host) needs {num_bytes / 1e6:.1f} MB of main memory, which is"
                f" unavailable ({error}); use optim.state_in=disk, or share the state among more"
                " processes"
            ) from error


@dataclass
class Traffic:
    """What went to a disk and came from it, and for how long."""

    read_bytes: int = 0
    written_bytes: int = 0
    read_s: float = 0.0
    write_s: float = 0.0


@dataclass(frozen=True)
class Content:
    """What lies on a disk, and the setting that has it lie elsewhere, for messages."""

    name: str
    setting: str


STATE = Content("optimizer state", "optim.state_in")
WEIGHTS = Content("weights", "memory.weights_in")


class OnDisk:
    """Bytes in a file without a name. Raises ConfigError where the folder cannot take it."""

    def __init__(self, num_bytes: int, folder: Path, content: Content = STATE) -> None:
        if sys.platform != "linux":
            raise ConfigError(
                f"{content.setting} (disk) needs Linux, this is {sys.platform}; use"
                f" {content.setting}=host"
            )
        self.folder, self.traffic, self._content = folder, Traffic(), content
        size = max(ALIGNMENT, num_bytes)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Closed with this object, also where no room is left.
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            raise ConfigError(
                f"optim.state_folder ({folder}) cannot take {num_bytes / 1e6:.1f} MB of"
                f" {content.name} ({error.strerror}); name a folder of a disk with room, or use"
                f" {content.setting}=host"
            ) from error
        self._map = mmap.mmap(self._file.fileno(), size)
        self.bytes_N = torch.frombuffer(self._map, dtype=torch.uint8)[:num_bytes]
        self.is_direct = self._set_direct()

    def _set_direct(self) -> bool:
        handle = self._file.fileno()
        try:
            fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:  # a file system in memory, or of a network
            return False
        return True

    def read(self, extents: Sequence[Extent], buffer_N: Tensor) -> None:
        """Ranges of the file in turn, into a buffer that begins where memory pages do."""
        began = time.perf_counter()
        self._move(os.preadv, extents, buffer_N)
        self.traffic.read_s += time.perf_counter() - began
        self.traffic.read_bytes += sum(end - begin for begin, end in extents)

    def write(self, extents: Sequence[Extent], buffer_N: Tensor) -> None:
        """A buffer that begins where memory pages do, into ranges of the file in turn."""
        began = time.perf_counter()
        self._move(os.pwritev, extents, buffer_N)
        self.traffic.write_s += time.perf_counter() - began
        self.traffic.written_bytes += sum(end - begin for begin, end in extents)

    def reset_traffic(self) -> None:
        self.traffic = Traffic()

    def leave_cache(self) -> None:
        """After use of `bytes_N`: flush what changed, and drop it from memory and kernel cache."""
        self._map.flush()
        self._map.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _move(self, call: object, extents: Sequence[Extent], buffer_N: Tensor) -> None:
        view, at = memoryview(buffer_N.numpy()), 0
        try:
            for begin, end in extents:
                while begin < end:
                    moved = call(self._file.fileno(), [view[at : at + end - begin]], begin)  # type: ignore[operator]
                    begin, at = begin + moved, at + moved
        except OSError as error:
            raise PagingFailed(
                f"{self._content.name} in {self.folder} cannot be read or written"
                f" ({error.strerror}); with a sound disk as optim.state_folder the run resumes from"
                " its last checkpoint"
            ) from error

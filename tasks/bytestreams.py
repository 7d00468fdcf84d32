"""Which bytes does a file hold, plain or compressed, and where do they stop being sound?

`read_blocks` decompresses gzip, zstd, bzip2 and xz in bounded memory, over every member and every frame. A stream
that ends in the middle, or is corrupt there, gives all bytes before that place and then raises `DamagedStream`, so
that readers can keep what is whole. Blocks have no meaning of their own: only their concatenation counts. `SoundBytes` is
the same as a file object for libraries that read one: it ends where the soundness does, and says so afterwards.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import zstandard

BLOCK_BYTES = 1 << 20
COMPRESSED_BLOCK_BYTES = 1 << 13
"""Small, because one zstd block of 4 bytes may stand for 128 kB: bounds what one call can return. And a file is
read hardly further than its stream is sound, which tells how much of it there was."""


class DamagedStream(ValueError):
    """A compressed stream that is cut off or corrupt; the bytes before that place were given."""


def read_blocks(stream: BinaryIO, compression: str = "") -> Iterator[bytes]:
    """The uncompressed bytes of a stream, in blocks. Raises DamagedStream after the last sound byte.

    compression: a suffix of `tasks.readers.formats.COMPRESSIONS`, or empty.
    """
    match compression:
        case "":
            while block := stream.read(BLOCK_BYTES):
                yield block
        case ".gz":
            yield from _gunzip(stream)
        case ".zst":
            yield from _unzstd(stream)
        case ".bz2":
            yield from _unpack(stream, "bzip2", bz2.BZ2Decompressor)
        case ".xz":
            yield from _unpack(stream, "xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ))
        case _:
            raise AssertionError(f"nothing decompresses {compression}")


class SoundBytes(io.RawIOBase):
    """The uncompressed bytes of a stream as a file to read forwards. `damage` says, at its end, why it ended early."""

    def __init__(self, stream: BinaryIO, compression: str = "") -> None:
        self._blocks = read_blocks(stream, compression)
        self._block = memoryview(b"")
        self._position = 0
        self.damage: str | None = None
        self.tail = b""
        """The last bytes that were read."""

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        while not self._block:
            try:
                self._block = memoryview(next(self._blocks, b""))
            except DamagedStream as error:
                self.damage = str(error)
            if not self._block:
                return 0
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self.tail = bytes(self._block[max(count - 8, 0) : count])
        self._block = self._block[count:]
        self._position += count
        return count

    def drain(self) -> None:
        """Read what is left, so that `damage` speaks of the whole stream."""
        while self.read(BLOCK_BYTES):
            pass


def _gunzip(stream: BinaryIO) -> Iterator[bytes]:
    member, started = zlib.decompressobj(wbits=31), False
    pending = b""
    while pending or (pending := stream.read(COMPRESSED_BLOCK_BYTES)):
        if not started:
            pending = pending.lstrip(b"\0")  # zero padding between members and at the end is allowed
            if not pending:
                continue
        try:
            block = member.decompress(pending, BLOCK_BYTES)
        except zlib.error as error:
            raise DamagedStream(f"corrupt gzip stream ({error})") from error
        started = True
        if block:
            yield block
        if member.eof:
            pending = member.unused_data
            member, started = zlib.decompressobj(wbits=31), False
        else:
            pending = member.unconsumed_tail
    if started:
        # What the decompressor still holds is sound: it was only waiting for more.
        if rest := member.flush():
            yield rest
        raise DamagedStream("truncated gzip stream")


def _unzstd(stream: BinaryIO) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame, started = decompressor.decompressobj(), False
    pending = b""
    while pending or (pending := stream.read(COMPRESSED_BLOCK_BYTES)):
        try:
            block = frame.decompress(pending)
        except zstandard.ZstdError as error:
            raise DamagedStream(f"corrupt zstd stream ({error})") from error
        started = True
        if block:
            yield block
        if frame.eof:
            pending = frame.unused_data
            frame, started = decompressor.decompressobj(), False
        else:
            pending = b""
    if started:
        raise DamagedStream("truncated zstd stream")


def _unpack(stream: BinaryIO, name: str, make: Any) -> Iterator[bytes]:
    """bzip2 and xz, whose decompressors of the standard library have one interface."""
    member, started = make(), False
    pending = b""
    while True:
        if not pending and (not started or member.needs_input) and not (pending := stream.read(COMPRESSED_BLOCK_BYTES)):
            break
        if not started:
            pending = pending.lstrip(b"\0")
            if not pending:
                continue
        try:
            block = member.decompress(pending, BLOCK_BYTES)
        except (OSError, lzma.LZMAError, EOFError) as error:
            raise DamagedStream(f"corrupt {name} stream ({error})") from error
        started, pending = True, b""
        if block:
            yield block
        if member.eof:
            pending = member.unused_data
            member, started = make(), False
    if started:
        raise DamagedStream(f"truncated {name} stream")

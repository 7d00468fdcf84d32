"""Which bytes does a file hold, plain or compressed, and where do they stop being sound?

`read_blocks` decompresses .gz and .zst in bounded memory, over every gzip member and every zstd frame. A stream
that ends in the middle, or is corrupt there, gives all bytes before that place and then raises `DamagedStream`, so
that readers can keep what is whole. Blocks have no meaning of their own: only their concatenation counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

BLOCK_BYTES = 1 << 20
COMPRESSED_BLOCK_BYTES = 1 << 13
"""Small, because one zstd block of 4 bytes may stand for 128 kB: bounds what one call can return."""

COMPRESSIONS = (".gz", ".zst")


class DamagedStream(ValueError):
    """A compressed stream that is cut off or corrupt; the bytes before that place were given."""


def read_blocks(path: Path) -> Iterator[bytes]:
    """The uncompressed bytes of a file, in blocks. Raises DamagedStream after the last sound byte."""
    with path.open("rb") as stream:
        if path.suffix == ".gz":
            yield from _gunzip(stream)
        elif path.suffix == ".zst":
            yield from _unzstd(stream)
        else:
            while block := stream.read(BLOCK_BYTES):
                yield block


def _gunzip(stream: BinaryIO) -> Iterator[bytes]:
    member, started = zlib.decompressobj(wbits=31), False
    pending = b""
    while pending or (pending := stream.read(BLOCK_BYTES)):
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

"""Decompresses gzip, zstd, bzip2 and xz step by step, in bounded memory.

`tasks.readers.bytestreams` drives them over every member of a stream and past damage.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import zstandard

BLOCK_BYTES = 1 << 20

ZSTD_STEP_BYTES = 1 << 9
"""Small, because one zstd block of 4 bytes may stand for 128 kB: bounds what one call can
return."""

TRAILER_BYTES = 4
"""At the end of a gzip member, with the length of its content."""
MAX_DEFLATE_RATIO = 1032
"""Of deflate; a length in a trailer beyond it is not believed, nor is any stream read beyond it. So
the bytes of a file bound the time it takes: a MB of zstd can stand for 32 GB."""
FREE_BYTES = 1 << 28
"""Uncompressed bytes that a stream may have whatever its ratio."""


class Codec(NamedTuple):
    name: str
    magic: bytes
    make: Callable[[int], Any]
    """A decompressor whose window has at most so many bytes."""
    step: Callable[[Any, bytes], tuple[bytes, bytes]]
    """(block, what of the pending bytes is still to be decompressed); the libraries differ in how
    they say the latter."""
    errors: tuple[type[Exception], ...]
    """MemoryError among them: a window that a stream asks for is taken at once."""
    stated_length: Callable[[bytes, bytes], int | None]
    """Uncompressed length by the first and the last compressed bytes of a member."""
    padded: bool = True
    """Zero bytes may stand between members and at the end."""
    checksum_errors: tuple[str, ...] = ()
    """Parts of what an error says where a checksum fails after all of a member was decompressed:
    then any byte of it may be altered. bzip2 and xz do not tell that from other damage."""


def _inflate(member: Any, pending: bytes) -> tuple[bytes, bytes]:
    block = member.decompress(pending, BLOCK_BYTES)
    return block, member.unused_data if member.eof else member.unconsumed_tail


def _unzstd(member: Any, pending: bytes) -> tuple[bytes, bytes]:
    blocks: list[bytes] = []
    num_bytes = place = 0
    while place < len(pending) and num_bytes < BLOCK_BYTES and not member.eof:
        blocks.append(member.decompress(pending[place : place + ZSTD_STEP_BYTES]))
        num_bytes, place = num_bytes + len(blocks[-1]), place + ZSTD_STEP_BYTES
    return b"".join(blocks), member.unused_data + pending[place:]


def _unpack(member: Any, pending: bytes) -> tuple[bytes, bytes]:
    block = member.decompress(pending, BLOCK_BYTES)
    return block, member.unused_data if member.eof else b""


def _isize(first: bytes, last: bytes) -> int | None:
    return int.from_bytes(last, "little") if len(last) == TRAILER_BYTES else None


def _frame_size(first: bytes, last: bytes) -> int | None:
    try:
        size = zstandard.frame_content_size(first)
    except zstandard.ZstdError:
        return None
    return None if size < 0 else size


CODECS: Mapping[str, Codec] = {
    ".gz": Codec(
        "gzip",
        b"\x1f\x8b\x08",
        lambda window: zlib.decompressobj(wbits=31),
        _inflate,
        (zlib.error, MemoryError),
        _isize,
        checksum_errors=("incorrect data check", "incorrect length check"),
    ),
    ".zst": Codec(
        "zstd",
        b"\x28\xb5\x2f\xfd",
        lambda window: zstandard.ZstdDecompressor(
            max_window_size=min(window, 1 << 31)
        ).decompressobj(),
        _unzstd,
        (zstandard.ZstdError, MemoryError),
        _frame_size,
        padded=False,
        checksum_errors=("checksum",),
    ),
    ".bz2": Codec(
        "bzip2",
        b"BZh",
        lambda window: bz2.BZ2Decompressor(),
        _unpack,
        (OSError, EOFError, MemoryError),
        lambda first, last: None,
    ),
    ".xz": Codec(
        "xz",
        b"\xfd7zXZ\0",
        lambda window: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=window + BLOCK_BYTES),
        _unpack,
        (lzma.LZMAError, EOFError, MemoryError),
        lambda first, last: None,
    ),
}


def most_bytes(compressed_bytes: int) -> int:
    """The most bytes that so many compressed ones may expand to."""
    return FREE_BYTES + MAX_DEFLATE_RATIO * compressed_bytes


def describe(codec: Codec, raised: BaseException, max_window_bytes: int) -> str:
    """The error of a fault for what a decompressor has raised."""
    if not (isinstance(raised, MemoryError) or "emory" in str(raised)):
        return f"corrupt {codec.name} stream ({raised})"
    return (
        f"a {codec.name} stream needs a window of more than {max_window_bytes:,} bytes; raise"
        " source.max_record_bytes"
    )


def describe_bomb(codec: Codec) -> str:
    return (
        f"a {codec.name} stream expands by more than {MAX_DEFLATE_RATIO:,} times; unpack it to read"
        " it"
    )

"""Reads the bytes of a file, plain or compressed, as far as they are sound, and finds the next
sound place after damage.

`read_blocks` decompresses gzip, zstd, bzip2 and xz in bounded memory, over every member and every
frame. A stream that ends in the middle, or is corrupt there, gives all bytes before that place and
then raises `DamagedStream`, so that readers can keep what is whole. Blocks have no meaning of their
own: only their concatenation counts. `SoundBytes` is the same as a file object for libraries that
read one: it ends where the soundness does, and says so afterwards.

`read_pieces` also tells where members begin, and resumes after damage at the next member whose
content begins as expected. A magic number alone is not enough for that: three bytes occur in
compressed data by chance.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from tasks.readers.codecs import BLOCK_BYTES, CODECS, TRAILER_BYTES, Codec

COMPRESSED_BLOCK_BYTES = 1 << 13
MAX_WINDOW_BYTES = 1 << 29
"""Of earlier content that a decompressor may keep: what it takes at the first bytes of a stream
that asks for it."""
HELD_COMPRESSED_BYTES = 1 << 20
"""Of the current member, to find the exact place of damage and members that a damaged one ran into.
Damaged deflate data turns invalid within some kB."""
MAX_MEMBER_HEADER_BYTES = 1 << 17
"""A gzip header has an extra field of up to 64 kB and names."""
MAX_DEFLATE_RATIO = 1032
"""Of deflate; a length in a trailer beyond it is not believed, nor is any stream read beyond it. So
the bytes of a file bound the time it takes: a MB of zstd can stand for 32 GB."""
FREE_BYTES = 1 << 28
"""Uncompressed bytes that a stream may have whatever its ratio."""


class DamagedStream(ValueError):
    """A compressed stream that is cut off or corrupt; the bytes before that place were given."""

    def __init__(self, error: str, stopped_at: int) -> None:
        super().__init__(error)
        self.stopped_at = stopped_at
        """Compressed bytes before the place."""


class MemberStart(NamedTuple):
    """A member, or frame, begins at `offset` of the compressed bytes."""

    offset: int


class Gap(NamedTuple):
    """Damage in a compressed stream, after which a sound member begins."""

    error: str
    stopped_at: int
    """Compressed bytes before the damage."""
    resumed_at: int
    """Compressed bytes before the next sound member."""
    missing_bytes: int
    """Uncompressed bytes that the damaged member states beyond those that were given; negative
    where it gave more than it states, 0 where it states nothing."""


Piece = bytes | MemberStart | Gap


def read_blocks(
    stream: BinaryIO, compression: str = "", max_window_bytes: int = MAX_WINDOW_BYTES
) -> Iterator[bytes]:
    """The uncompressed bytes of a stream, in blocks. Raises DamagedStream after the last sound
    byte.

    compression: a suffix of `tasks.readers.formats.COMPRESSIONS`, or empty.
    """
    for piece in read_pieces(stream, compression, b"", max_window_bytes):
        if type(piece) is bytes:
            yield piece


def read_pieces(
    stream: BinaryIO,
    compression: str = "",
    begins: bytes = b"",
    max_window_bytes: int = MAX_WINDOW_BYTES,
) -> Iterator[Piece]:
    """Blocks of uncompressed bytes, the places where members begin, and gaps.

    begins: what the content of every member that is worth resuming at begins with; empty: damage
    ends the stream, and is raised as DamagedStream. So is damage after which there is no such
    member.
    """
    if not compression:
        while block := stream.read(BLOCK_BYTES):
            yield block
        return
    codec, source, pending, member = CODECS[compression], _Compressed(stream), b"", None
    make = partial(codec.make, max_window_bytes)
    given = total = 0
    while True:
        if not pending and (member is None or getattr(member, "needs_input", True)):
            pending = source.read()
            if not pending and member is None:
                return
        if member is None:
            pending = pending.lstrip(b"\0") if codec.padded else pending
            if not pending:
                continue
            source.begin_member(pending)
            member, given = make(), 0
            yield MemberStart(source.offset - len(pending))
        error, at_end = "", not pending and getattr(member, "needs_input", True)
        if at_end:
            error = f"truncated {codec.name} stream"
            # What the decompressor still holds is sound: it was only waiting for more.
            if rest := member.flush() if codec.name == "gzip" else b"":
                given += len(rest)
                yield rest
        else:
            try:
                block, pending_after = codec.step(member, pending)
            except codec.errors as raised:
                error = _describe(codec, raised, max_window_bytes)
            else:
                pending, given = pending_after, given + len(block)
                total += len(block)
                if block:
                    yield block
                if member.eof:
                    member = None
                elif total > most_bytes(source.offset):
                    stopped_at = source.offset - len(pending)
                    yield _resume(
                        codec, make, source, BOMB.format(codec.name), stopped_at, given, begins
                    )
                    pending, member = b"", None
        if error:
            stopped_at = source.offset - len(pending)
            for block, num_sound in _salvage(codec, make, source, pending, given):
                given, stopped_at = given + len(block), source.offset - len(pending) + num_sound
                if block:
                    yield block
            yield _resume(codec, make, source, error, stopped_at, given, begins)
            pending, member = b"", None


def most_bytes(compressed_bytes: int) -> int:
    """How many bytes may come of so many compressed ones."""
    return FREE_BYTES + MAX_DEFLATE_RATIO * compressed_bytes


BOMB = f"a {{}} stream expands by more than {MAX_DEFLATE_RATIO:,} times; unpack it to read it"


def _describe(codec: Codec, raised: BaseException, max_window_bytes: int) -> str:
    if not (isinstance(raised, MemoryError) or "emory" in str(raised)):
        return f"corrupt {codec.name} stream ({raised})"
    return (
        f"a {codec.name} stream needs a window of more than {max_window_bytes:,} bytes; raise"
        " source.max_record_bytes"
    )


class _Compressed:
    """Compressed bytes in small chunks, with those of the current member at hand."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._returned = stream, b""
        self.offset = 0
        """Bytes taken."""
        self._chunks: deque[bytes] = deque()
        self._held_bytes = 0
        self.is_whole = True
        """Whether all that was taken of the member is held."""

    def read(self) -> bytes:
        if self._returned:
            chunk, self._returned = (
                self._returned[:COMPRESSED_BLOCK_BYTES],
                self._returned[COMPRESSED_BLOCK_BYTES:],
            )
        else:
            chunk = self._stream.read(COMPRESSED_BLOCK_BYTES)
        self.offset += len(chunk)
        self._hold(chunk)
        return chunk

    def begin_member(self, pending: bytes) -> None:
        self._chunks.clear()
        self._held_bytes, self.is_whole = 0, True
        self._hold(pending)

    def held(self) -> bytes:
        return b"".join(self._chunks)

    def give_back(self, data: bytes) -> None:
        """Let `data` be what is read next."""
        self.offset -= len(data)
        self._returned = data + self._returned

    def _hold(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        while self._held_bytes > HELD_COMPRESSED_BYTES and len(self._chunks) > 1:
            self._held_bytes -= len(self._chunks.popleft())
            self.is_whole = False


def _salvage(
    codec: Codec, make: Callable[[], Any], source: _Compressed, pending: bytes, given: int
) -> Iterator[tuple[bytes, int]]:
    """(block, how many of the pending bytes are sound) up to the damage: a call that fails keeps
    what it had decompressed.

    Decompresses the member again, and what failed byte by byte; only where all of it is held.
    """
    if not (pending and source.is_whole):
        return
    held, again, skip = source.held(), make(), given
    before = len(held) - len(pending)
    for i in range(-1, len(pending)):
        rest = held[:before] if i < 0 else pending[i : i + 1]
        while True:
            try:
                block, rest = codec.step(again, rest)
            except codec.errors:
                return
            skip, block = max(0, skip - len(block)), block[skip:]
            yield block, i + 1
            if again.eof or not (rest or not getattr(again, "needs_input", True)):
                break
        if again.eof:
            return


def _resume(
    codec: Codec,
    make: Callable[[], Any],
    source: _Compressed,
    error: str,
    stopped_at: int,
    given: int,
    begins: bytes,
) -> Gap:
    """Go to the next sound member. Raises DamagedStream where there is none."""
    data = source.held()
    first, span_start = data[:64], source.offset - len(data)
    is_member, place = source.is_whole and data.startswith(codec.magic), 1
    while begins:
        found = data.find(codec.magic, place)
        if found < 0:
            if not (chunk := source.read()):
                break
            data, place = data[-len(codec.magic) - TRAILER_BYTES :] + chunk, 1
            continue
        while len(data) < found + MAX_MEMBER_HEADER_BYTES and (chunk := source.read()):
            data += chunk
        if _begins(codec, make(), data[found : found + MAX_MEMBER_HEADER_BYTES], begins):
            resumed_at = source.offset - len(data) + found
            source.give_back(data[found:])
            stated = (
                codec.stated_length(first, data[max(0, found - TRAILER_BYTES) : found])
                if is_member
                else None
            )
            believed = stated is not None and 0 < stated <= MAX_DEFLATE_RATIO * (
                resumed_at - span_start
            )
            return Gap(
                error,
                stopped_at,
                resumed_at,
                stated - given if stated is not None and believed else 0,
            )
        place = found + 1
    raise DamagedStream(error, stopped_at)


def _begins(codec: Codec, member: Any, data: bytes, begins: bytes) -> bool:
    start = b""
    try:
        for i in range(0, len(data), COMPRESSED_BLOCK_BYTES):
            start += codec.step(member, data[i : i + COMPRESSED_BLOCK_BYTES])[0]
            if len(start) >= len(begins) or member.eof:
                break
    except codec.errors:
        return False
    return start.startswith(begins)


class SoundBytes(io.RawIOBase):
    """The uncompressed bytes of a stream as a file to read forwards. `damage` says, at its end, why
    it ended early."""

    def __init__(
        self, stream: BinaryIO, compression: str = "", max_window_bytes: int = MAX_WINDOW_BYTES
    ) -> None:
        self._blocks = read_blocks(stream, compression, max_window_bytes)
        self._block = memoryview(b"")
        self.damage: DamagedStream | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._block:
            try:
                self._block = memoryview(next(self._blocks, b""))
            except DamagedStream as error:
                self.damage = error
            if not self._block:
                return 0
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def drain(self) -> None:
        """Read what is left, so that `damage` speaks of the whole stream."""
        while self.read(BLOCK_BYTES):
            pass

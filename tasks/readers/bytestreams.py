"""Reads the bytes of a file, plain or compressed, as far as they are sound, and finds the next
sound place after damage.

`read_blocks` decompresses gzip, zstd, bzip2 and xz in bounded memory, over every member and every
frame. A stream that ends in the middle, or is corrupt there, gives all bytes before that place and
then raises `DamagedStream`, so that readers can keep what is whole. Where the checksum after a
member fails, any of its bytes may be wrong. So a member within the size limit of a record is given
only once its checksum holds; for a longer one the error says how much was given before. Blocks have
no meaning of their own: only their concatenation counts. `SoundBytes` is the same as a file object
for libraries that read one: it ends where the soundness does, and says so afterwards.

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

from tasks.readers.codecs import (
    BLOCK_BYTES,
    CODECS,
    MAX_DEFLATE_RATIO,
    TRAILER_BYTES,
    Codec,
    describe,
    describe_bomb,
    most_bytes,
)
from tasks.readers.recordlimits import USUAL, Limits

COMPRESSED_BLOCK_BYTES = 1 << 13
HELD_COMPRESSED_BYTES = 1 << 20
"""Of the current member, to find the exact place of damage and members that a damaged one ran into.
Damaged deflate data turns invalid within some kB."""
MAX_MEMBER_HEADER_BYTES = 1 << 17
"""A gzip header has an extra field of up to 64 kB and names."""


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
    where it gave more than it states. Where it states nothing, those that were held back."""


Piece = bytes | MemberStart | Gap


def read_blocks(stream: BinaryIO, compression: str = "", limits: Limits = USUAL) -> Iterator[bytes]:
    """The uncompressed bytes of a stream, in blocks. Raises DamagedStream after the last sound
    byte.

    compression: a suffix of `tasks.readers.formats.COMPRESSIONS`, or empty.
    """
    for piece in read_pieces(stream, compression, b"", limits):
        if type(piece) is bytes:
            yield piece


def read_pieces(
    stream: BinaryIO,
    compression: str = "",
    begins: bytes = b"",
    limits: Limits = USUAL,
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
    make = partial(codec.make, limits.window_bytes)
    begin = total = 0
    unverified = _Unverified(0)
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
            begin, member = source.offset - len(pending), make()
            unverified = _Unverified(limits.record_bytes if codec.checksum_errors else 0)
            yield MemberStart(begin)
        block, error, is_altered = b"", "", False
        if not pending and getattr(member, "needs_input", True):
            error = f"truncated {codec.name} stream"
            # What the decompressor still holds is sound: it was only waiting for more.
            block = member.flush() if codec.name == "gzip" else b""
        else:
            try:
                block, pending = codec.step(member, pending)
            except codec.errors as raised:
                error = describe(codec, raised, limits.window_bytes)
                is_altered = any(words in str(raised) for words in codec.checksum_errors)
        total += len(block)
        yield from unverified.pass_on(block)
        stopped_at = source.offset - len(pending)
        if not error and total > most_bytes(source.offset):
            error = describe_bomb(codec)
            yield from unverified.release()
        elif is_altered:
            # Whatever was given of the member may be altered, and no one knows where.
            error += f"; {unverified.num_given:,} bytes of it were read before"
            stopped_at = stopped_at if unverified.num_given else begin
            taken = unverified.num_given + unverified.num_held
            for block, _ in _salvage(codec, make, source, pending, taken):
                unverified.num_held += len(block)
        elif error:
            yield from unverified.release()
            for block, num_sound in _salvage(codec, make, source, pending, unverified.num_given):
                stopped_at = source.offset - len(pending) + num_sound
                yield from unverified.pass_on(block)
        elif member.eof:
            yield from unverified.release()
            member = None
        if error:
            yield _resume(codec, make, source, error, stopped_at, unverified, begins)
            pending, member = b"", None
            total = min(total, most_bytes(source.offset))  # a bomb does not spend what comes later


class _Unverified:
    """The blocks of a member whose checksum is still to come, up to the length of a record; those
    of a longer one are given as they come."""

    def __init__(self, max_held_bytes: int) -> None:
        self._max_held_bytes = max_held_bytes
        self._blocks: list[bytes] = []
        self.num_held = self.num_given = 0
        """Bytes."""

    def pass_on(self, block: bytes) -> list[bytes]:
        """What may be given now that there is another block."""
        if block:
            self._blocks.append(block)
            self.num_held += len(block)
        return self.release() if self.num_held > self._max_held_bytes else []

    def release(self) -> list[bytes]:
        """All that is held; from now on nothing is."""
        blocks, self._blocks, self._max_held_bytes = self._blocks, [], 0
        self.num_given, self.num_held = self.num_given + self.num_held, 0
        return blocks


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
    unverified: _Unverified,
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
            missing = (
                stated - unverified.num_given
                if stated is not None and believed
                else unverified.num_held
            )
            return Gap(error, stopped_at, resumed_at, missing)
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

    def __init__(self, stream: BinaryIO, compression: str = "", limits: Limits = USUAL) -> None:
        self._blocks = read_blocks(stream, compression, limits)
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

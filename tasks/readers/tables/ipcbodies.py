"""Checks how large the compressed bodies of an Arrow IPC file or stream claim to be, before Arrow
takes that much memory.

Every buffer of a compressed body begins with its length when decompressed, and Arrow takes that
much at once: a few MB of zstd can stand for many GB. The buffers are listed in the metadata of
their message, in FlatBuffers (Arrow columnar format, IPC; flatbuffers.dev, internals). What cannot
be decoded is left to Arrow, whose verifier refuses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tasks.readers.recordlimits import Limits
from tasks.readers.tables.parquetfooters import MAX_PAGE_RATIO, OverLimit, Undecodable

FILE_MAGIC = b"ARROW1"
CONTINUATION = b"\xff\xff\xff\xff"
OLD_COMPRESSION = b"ARROW:experimental_compression"
"""In the metadata of a message of Arrow 0.17, which Arrow still reads."""
MAX_METADATA_BYTES = 1 << 27
RECORD_BATCH, DICTIONARY_BATCH = 3, 2
BLOCK_BYTES, BUFFER_BYTES, LENGTH_BYTES = 24, 16, 8


def require_small_bodies(stream: BinaryIO, limits: Limits) -> None:
    """Raise OverLimit where a batch, or all dictionaries together, would expand like a bomb."""
    dictionaries = _Sizes(0, 0)
    try:
        for is_dictionary, sizes in _bodies(stream):
            if is_dictionary:
                sizes = dictionaries = _Sizes(*map(sum, zip(dictionaries, sizes, strict=True)))
            if (
                sizes.claimed_bytes > limits.record_bytes
                and sizes.claimed_bytes > MAX_PAGE_RATIO * sizes.stored_bytes
            ):
                raise OverLimit(limits.over("a compressed Arrow batch"))
    except Undecodable:
        return
    finally:
        stream.seek(0)


class _Sizes(NamedTuple):
    """Of the compressed buffers of a message."""

    claimed_bytes: int
    stored_bytes: int


def _bodies(stream: BinaryIO) -> Iterator[tuple[bool, _Sizes]]:
    """(whether it is a dictionary, its sizes) of every message with compressed buffers."""
    stream.seek(0, os.SEEK_END)
    size = stream.tell()
    if _read(stream, 0, len(FILE_MAGIC), size) == FILE_MAGIC:
        for place in _blocks(stream, size):
            yield from _sizes_of(stream, _message(stream, place, size), size)
        return
    place = 0
    while place < size:
        message = _message(stream, place, size)
        yield from _sizes_of(stream, message, size)
        place = message.end


class _Message(NamedTuple):
    metadata: bytes
    body: int
    end: int


def _message(stream: BinaryIO, place: int, size: int) -> _Message:
    """The message at a place; one without metadata ends a stream, after which another may begin."""
    prefix = _read(stream, place, 8, size)
    begin = place + 8
    length = int.from_bytes(prefix[4:], "little", signed=True)
    if prefix[:4] != CONTINUATION:  # as until Arrow 0.14
        begin, length = place + 4, int.from_bytes(prefix[:4], "little", signed=True)
    if not length:
        return _Message(b"", begin, begin)
    if not 0 < length <= MAX_METADATA_BYTES:
        raise Undecodable("no length of a message")
    metadata = _read(stream, begin, length, size)
    body = begin + length
    return _Message(metadata, body, body + max(0, _Table.root(metadata).number(3, 8)))


def _sizes_of(stream: BinaryIO, message: _Message, size: int) -> Iterator[tuple[bool, _Sizes]]:
    if not message.metadata:
        return
    root = _Table.root(message.metadata)
    kind, batch = root.number(1, 1), root.table(2)
    if kind == DICTIONARY_BATCH and batch is not None:
        batch = batch.table(1)
    if kind not in (RECORD_BATCH, DICTIONARY_BATCH) or batch is None:
        return
    if batch.table(3) is None and OLD_COMPRESSION not in message.metadata:
        return
    claimed = 0
    for buffer in batch.structs(2, BUFFER_BYTES):
        offset, length = (int.from_bytes(buffer[i : i + 8], "little", signed=True) for i in (0, 8))
        if length >= LENGTH_BYTES and offset >= 0:
            data = _read(stream, message.body + offset, LENGTH_BYTES, size)
            claimed += max(0, int.from_bytes(data, "little", signed=True))
    yield kind == DICTIONARY_BATCH, _Sizes(claimed, message.end - message.body)


def _blocks(stream: BinaryIO, size: int) -> Iterator[int]:
    """Places of the messages that the footer of a file lists, dictionaries first."""
    tail = _read(stream, max(0, size - 10), 10, size)
    length = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != FILE_MAGIC or not 0 < length <= min(size - 10, MAX_METADATA_BYTES):
        raise Undecodable("no footer")
    footer = _Table.root(_read(stream, size - 10 - length, length, size))
    for field in (2, 3):
        for block in footer.structs(field, BLOCK_BYTES):
            yield int.from_bytes(block[:8], "little", signed=True)


def _read(stream: BinaryIO, place: int, num_bytes: int, size: int) -> bytes:
    if place < 0 or place + num_bytes > size:
        raise Undecodable("cut off")
    stream.seek(place)
    return stream.read(num_bytes)


class _Table:
    """A table in FlatBuffers: fields by number, absent ones empty. Raises Undecodable."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        self._fields = place - self._int(place, 4)
        self._fields_bytes = self._int(self._fields, 2, signed=False)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        if len(data) < 4:
            raise Undecodable("no table")
        return cls(data, int.from_bytes(data[:4], "little"))

    def number(self, field: int, num_bytes: int) -> int:
        place = self._field(field)
        return 0 if place is None else self._int(place, num_bytes)

    def table(self, field: int) -> _Table | None:
        place = self._field(field)
        return None if place is None else _Table(self._data, self._follow(place))

    def structs(self, field: int, num_bytes: int) -> Iterator[bytes]:
        if (place := self._field(field)) is None:
            return
        begin = self._follow(place)
        count = self._int(begin, 4, signed=False)
        if begin + 4 + count * num_bytes > len(self._data):
            raise Undecodable("a list that is too long")
        for i in range(begin + 4, begin + 4 + count * num_bytes, num_bytes):
            yield self._data[i : i + num_bytes]

    def _field(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return None
        offset = self._int(self._fields + entry, 2, signed=False)
        return self._place + offset if offset else None

    def _follow(self, place: int) -> int:
        return place + self._int(place, 4, signed=False)

    def _int(self, place: int, num_bytes: int, signed: bool = True) -> int:
        if not 0 <= place <= len(self._data) - num_bytes:
            raise Undecodable("cut off")
        return int.from_bytes(self._data[place : place + num_bytes], "little", signed=signed)

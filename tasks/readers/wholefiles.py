"""Reads files that are one document each, named by their path, and text files of a document per
line or paragraph, named by path and line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, cast

from tasks.readers.bytestreams import DamagedStream, read_blocks
from tasks.readers.items import Columns, Fault, Item, Record, damaged
from tasks.readers.jsonlines import BOM, LongLine, split_lines
from tasks.readers.pages import Encoded
from tasks.readers.recordlimits import Limits


def read_text(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """The whole file as one text in UTF-8."""
    data = _read_whole(stream, compression, limits)
    if isinstance(data, Fault):
        yield data
        return
    repaired = ("BOM",) if data.startswith(BOM) else ()
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        yield Fault(line, error.start, f"invalid UTF-8: byte 0x{error.object[error.start]:02x}")
    else:
        yield Record(0, 1, 0, columns.values(text, id=name), repaired)


def read_pieces_of_text(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits, unit: str
) -> Iterator[Item]:
    """Every line that is not blank, or every paragraph: the lines between blank ones."""
    held: list[bytes] = []
    first = begin = held_bytes = 0
    for number, offset, line in split_lines(stream, compression, limits, b"\0"):
        if isinstance(line, DamagedStream):
            # The paragraph that the damage is in is not whole.
            at = (first, begin) if held else (number, offset)
            yield Fault(*at, damaged(line), True, line.stopped_at)
            return
        if isinstance(line, LongLine) or line.strip():
            if not held:
                first, begin, held_bytes = number, offset, 0
            size = line.num_bytes if isinstance(line, LongLine) else len(line)
            held_bytes += size + 1
            is_over = held_bytes > limits.record_bytes + 1
            if is_over:
                held = [b""]
            else:
                held.append(cast(bytes, line))
            if unit == "paragraph":
                continue
        if held:
            yield _piece(b"\n".join(held), held_bytes, first, begin, name, columns, limits)
            held = []
    if held:
        yield _piece(b"\n".join(held), held_bytes, first, begin, name, columns, limits)


def _piece(
    data: bytes, size: int, line: int, offset: int, name: str, columns: Columns, limits: Limits
) -> Item:
    if size > limits.record_bytes + 1:
        return Fault(line, offset, limits.over("a line or paragraph"))
    repaired = ("BOM",) if not offset and data.startswith(BOM) else ()
    try:
        text = data.removeprefix(BOM).decode("utf-8") if repaired else data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Fault(line, offset, f"invalid UTF-8: byte 0x{data[error.start]:02x}")
    return Record(offset, line, offset, columns.values(text, id=f"{name}:{line}"), repaired)


def read_document(
    stream: BinaryIO,
    compression: str,
    name: str,
    columns: Columns,
    limits: Limits,
    kind: str,
    encoding: str | None = None,
) -> Iterator[Item]:
    """The whole file, of which the text is extracted later. `encoding`: what the source says."""
    data = _read_whole(stream, compression, limits)
    if isinstance(data, Fault):
        yield data
    else:
        yield Record(0, 1, 0, columns.values(Encoded(data, encoding, kind), id=name))


def _read_whole(stream: BinaryIO, compression: str, limits: Limits) -> bytes | Fault:
    blocks: list[bytes] = []
    num_bytes = 0
    try:
        for block in read_blocks(stream, compression, limits):
            num_bytes += len(block)
            if num_bytes > limits.record_bytes:
                return Fault(1, 0, limits.over("a file that is one document"))
            blocks.append(block)
    except DamagedStream as error:
        return Fault(1, 0, damaged(error))
    return b"".join(blocks)

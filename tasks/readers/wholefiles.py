"""Files that are one document each: plain text, Markdown and HTML, named by their path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from tasks.readers.bytestreams import DamagedStream, read_blocks
from tasks.readers.items import Columns, Fault, Item, Record, damaged
from tasks.readers.jsonlines import BOM
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


def read_html(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """The whole file as one page in whatever encoding."""
    data = _read_whole(stream, compression, limits)
    if isinstance(data, Fault):
        yield data
    else:
        yield Record(0, 1, 0, columns.values(Encoded(data, None, True), id=name))


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

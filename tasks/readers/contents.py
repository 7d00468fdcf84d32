"""Recognises what a file holds by its first bytes, where that is not what its name says.

Compressed content under any name, and Parquet and Arrow tables under that of another format, are
read as what they are, and so is plain JSON, WARC, HTML or tar whose name ends in `.gz` and the
like. Whatever else is plainly of another kind (a PDF, a zip archive under the name of a text) is
one fault that says so. What cannot be told from damage is left to its reader.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from typing import BinaryIO, cast

from tasks.readers.formats import SEEKING, Format
from tasks.readers.items import Fault

HEAD_BYTES = 512
COMPRESSED: Mapping[str, re.Pattern[bytes]] = {
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    ".bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\x00"),
}
TABLES: Mapping[str, tuple[bytes, bytes]] = {
    "parquet": (b"PAR1", b"PAR1"),
    "arrow": (b"ARROW1\0\0", b"ARROW1"),
}
"""First and last bytes; both are asked for, since text may begin with either."""
PLAIN: Mapping[str, re.Pattern[bytes]] = {
    "jsonl": re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]"),
    "warc": re.compile(rb"\s*WARC/\d"),
    "html": re.compile(rb"(?:\xef\xbb\xbf)?\s*<"),
    "tar": re.compile(rb".{257}ustar", re.DOTALL),
}
OTHERS: Mapping[str, re.Pattern[bytes]] = {
    "a zip archive (also .docx, .xlsx, .epub)": re.compile(rb"PK(?:\x03\x04|\x05\x06)"),
    "a tar archive": PLAIN["tar"],
    "a PDF file": re.compile(rb"%PDF-\d"),
    "a picture": re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a"),
    "a program": re.compile(rb"\x7fELF|MZ.{58}", re.DOTALL),
    "an SQLite database": re.compile(rb"SQLite format 3\x00"),
    "an LZ4 file": re.compile(rb"\x04\x22\x4d\x18"),
    "a 7z archive": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "a RAR archive": re.compile(rb"Rar!\x1a\x07"),
    "an old Office document": re.compile(rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    "an Avro file": re.compile(rb"Obj\x01"),
}
"""Kinds without a reader under this name; none is text."""
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def recognise(stream: BinaryIO, form: Format) -> tuple[BinaryIO, Format] | Fault:
    """(the stream from its beginning, what it holds), or why it cannot be read."""
    stream, head = peek(stream)
    compression = next((suffix for suffix, magic in COMPRESSED.items() if magic.match(head)), "")
    if compression == form.compression and compression:
        return stream, form
    if form.compression and _is_plain(head, form.kind):
        return stream, Format(form.kind, "")
    if compression and form.kind not in SEEKING:
        return stream, Format(form.kind, compression)
    if form.compression:
        if _is_text(head) and len(head) > 8:
            what = f"plain text under a name in {form.compression}; take that off its name"
            return Fault(1, 0, f"another format: {what}", True, 0)
        return stream, form
    for table, (first, last) in TABLES.items():
        if head.startswith(first) and _ends_with(stream, last):
            return stream, Format(table, "")
    other = f"a file in {compression}" if compression else _other(head, form.kind)
    if other:
        what = f"{other} under the name of {form.kind}; rename or unpack it, or leave it out"
        return Fault(1, 0, f"another format: {what}")
    if form.kind in ("parquet", "zip") and len(head) > 8 and _is_text(head):
        what = f"plain text under the name of {form.kind}; rename it"
        return Fault(1, 0, f"another format: {what}", True, 0)
    return stream, form


def _other(head: bytes, kind: str) -> str | None:
    # Zip archives begin as they like: some programs write others before them.
    if kind in ("zip", "tar", "parquet", "arrow"):
        return None
    what = next((what for what, magic in OTHERS.items() if magic.match(head)), None)
    # Two letters, or the name of a format, may also begin a text. A PDF may be all text where it
    # begins.
    return None if what != "a PDF file" and _is_text(head) else what


def _is_plain(head: bytes, kind: str) -> bool:
    """Whether the first bytes are those of the format itself."""
    # A bracket alone may also begin a damaged compressed stream.
    is_like = kind in PLAIN and PLAIN[kind].match(head) is not None
    return is_like and (kind in ("warc", "tar") or _is_text(head))


def _is_text(head: bytes) -> bool:
    """Whether the first bytes are UTF-8 without control characters, as no compressed stream is."""
    if CONTROL.search(head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return len(head) == HEAD_BYTES and error.start > HEAD_BYTES - 4  # a character may be cut
    return bool(head)


def peek(stream: BinaryIO) -> tuple[BinaryIO, bytes]:
    """The stream from its beginning, and its first bytes."""
    head = b""
    while len(head) < HEAD_BYTES and (block := stream.read(HEAD_BYTES - len(head))):
        head += block
    if stream.seekable():
        stream.seek(0)
        return stream, head
    return cast(BinaryIO, _Rejoined(head, stream)), head


def _ends_with(stream: BinaryIO, end: bytes) -> bool:
    if not stream.seekable():
        return False
    stream.seek(0, os.SEEK_END)
    size = stream.tell()
    stream.seek(max(0, size - len(end)))
    last = stream.read(len(end))
    stream.seek(0)
    return last == end and size > 2 * len(end)


class _Rejoined(io.RawIOBase):
    """Bytes that were read and the stream they were taken from, as one."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        data = data or self._rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

"""Recognises what a file holds by its first bytes, where that is not what its name says.

Compressed content under any name, and Parquet and Arrow tables, documents, archives, pages and
mailboxes under that of another format, are read as what they are, and so is plain JSON, WARC, HTML
or tar whose name ends in `.gz` and the like. Whatever else is plainly of another kind (a picture
under the name of a text) is one fault that says so. What cannot be told from damage is left to its
reader. Under `source.format=auto` the content alone decides for files without a known name.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, BinaryIO, cast

from tasks.readers.archives import ZIP_TROUBLE, ShortReads
from tasks.readers.bytestreams import DamagedStream, read_blocks
from tasks.readers.formats import FORMATS, SEEKING, UNKNOWN, Format
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
"""What a format begins with, where its name says so too."""
SURE: Mapping[str, re.Pattern[bytes]] = {
    "pdf": re.compile(rb"%PDF-\d"),
    "sqlite": re.compile(rb"SQLite format 3\x00"),
    "warc": re.compile(rb"WARC/\d\.\d\r?\nWARC-"),
    "tar": PLAIN["tar"],
    "mediawiki": re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<mediawiki\s"),
    "html": re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE),
    "mailbox": re.compile(
        rb"From [^\n]{1,200} (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d"
        rb" \d\d:\d\d:\d\d \d{4}[^\n]{0,20}\n[A-Za-z-]+:"
    ),
    "jsonl": re.compile(rb'(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{\s*"'),
}
"""What is read as this format under the name of another."""
MAY_BEGIN: Mapping[str, tuple[str, ...]] = {
    "jsonl": ("text", "latex", "notebook"),
    "html": ("mediawiki", "latex", "mail", "mailbox"),
    "tar": ("zip",),
}
"""Formats whose own files may begin like another."""
ZIPPED: Mapping[str, str] = {
    "word/document.xml": "docx",
    "content.xml": "odt",
    "META-INF/container.xml": "epub",
    "xl/workbook.xml": "a spreadsheet",
    "ppt/presentation.xml": "a presentation",
}
"""What a zip archive with such a member is."""
ODT_TYPE = b"application/vnd.oasis.opendocument.text"
OTHERS: Mapping[str, re.Pattern[bytes]] = {
    "a zip archive": re.compile(rb"PK(?:\x03\x04|\x05\x06)"),
    "a tar archive": PLAIN["tar"],
    "a PDF file": re.compile(rb"%PDF-\d"),
    "a picture": re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a"),
    "a program": re.compile(rb"\x7fELF|MZ.{58}", re.DOTALL),
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
    if form.kind == UNKNOWN and compression:
        start = _first_bytes(stream, compression)
        kind = _sure_kind(stream, start, UNKNOWN, is_compressed=True)
        form = Format("text" if kind == UNKNOWN and _is_text(start) else kind, compression)
        if form.kind not in FORMATS.values():
            return _refused(UNKNOWN, "binary data")
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
    kind = form.kind if compression else _sure_kind(stream, head, form.kind)
    if kind in FORMATS.values() and kind != form.kind:
        return stream, Format(kind, "")
    if kind == UNKNOWN and _is_text(head):
        return stream, Format("text", "")
    other = f"a file in {compression}" if compression else _other(head, form.kind)
    other = kind if kind not in (form.kind, UNKNOWN) else other
    if other or kind == UNKNOWN:
        return _refused(form.kind, other or "binary data")
    if form.kind in ("parquet", "zip") and len(head) > 8 and _is_text(head):
        what = f"plain text under the name of {form.kind}; rename it"
        return Fault(1, 0, f"another format: {what}", True, 0)
    return stream, form


def _refused(kind: str, what: str) -> Fault:
    under = "no known name" if kind == UNKNOWN else f"the name of {kind}"
    return Fault(
        1, 0, f"another format: {what} under {under}; rename or unpack it, or leave it out"
    )


def is_sqlite(path: Path) -> bool:
    """Whether a file is read as a database, whatever its name."""
    with path.open("rb") as file:
        return SURE["sqlite"].match(file.read(HEAD_BYTES)) is not None


def describe(path: Path) -> str:
    """What a file without a reader is, for messages."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    known = next((what for what, magic in OTHERS.items() if magic.match(head)), None)
    return known or ("plain text" if _is_text(head) else "of an unknown format")


def _sure_kind(stream: BinaryIO, head: bytes, kind: str, is_compressed: bool = False) -> str:
    """The format of a stream by its beginning, else the one that its name says, or what it is in
    words."""
    if head.startswith(b"PK\x03\x04") and not is_compressed:
        return _zipped_kind(stream, head, kind)
    for sure, magic in SURE.items():
        if sure in SEEKING and not stream.seekable():
            continue
        if sure != kind and kind not in MAY_BEGIN.get(sure, ()) and magic.match(head):
            return sure
    return kind


def _zipped_kind(stream: BinaryIO, head: bytes, kind: str) -> str:
    """What a zip archive is, by its members."""
    if not stream.seekable():
        return kind
    try:
        with zipfile.ZipFile(cast(IO[bytes], ShortReads(stream))) as archive:
            names = set(archive.namelist())
    except ZIP_TROUBLE:
        return kind
    finally:
        stream.seek(0)
    found = next((what for name, what in ZIPPED.items() if name in names), "zip")
    if found == "odt" and ODT_TYPE not in head:
        found = "an OpenDocument file other than a text"
    is_archive = found not in FORMATS.values() and kind == "zip"
    return kind if is_archive or (found == "zip" and kind in ZIPPED.values()) else found


def _first_bytes(stream: BinaryIO, compression: str) -> bytes:
    """Of the content of a compressed file that can be read again."""
    try:
        return next(read_blocks(stream, compression), b"")[:HEAD_BYTES]
    except DamagedStream:
        return b""
    finally:
        stream.seek(0)


def _other(head: bytes, kind: str) -> str | None:
    # Zip archives begin as they like: some programs write others before them. Documents are left to
    # their readers.
    if kind in ("zip", "tar", "parquet", "arrow", "pdf", "sqlite", *ZIPPED.values()):
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

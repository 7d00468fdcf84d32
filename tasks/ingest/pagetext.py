"""Decodes pages of unknown encoding to text, and extracts the main content of HTML.

Encoding: the first of these under which every byte has a meaning: a byte order mark; UTF-8, where
anything is beyond ASCII; what the server said; what the page says in `<meta>`; what statistics
guess (uchardet); else Windows-1252, with U+FFFD for what is left. UTF-8 goes before what the server
says, against the letter of the WHATWG's standard: text in another encoding is almost never valid
UTF-8, and servers declare defaults. Labels mean what browsers take them for (ISO-8859-1 is
Windows-1252, EUC-KR is CP949).

Text: resiliparse's main content (tasks.ingest.maintext), which drops navigation, forms and
comments; paragraphs, lists and preformatted text keep their lines.

Runs in a sandbox (tasks.runtime.sandbox): all of it works on input that somebody else wrote to be
read by something else. What it needs is imported at its start, so that no page pays for it.
"""

from __future__ import annotations

import codecs
import io
import zlib
from typing import Any, NamedTuple

from fastwarc import stream_io
from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from tasks.ingest.maintext import extract_text
from tasks.readers.encodings import SUPERSETS, guess_encoding
from tasks.readers.pages import BrokenPage, join_frame, split_frame
from tasks.readers.recordlimits import Limits

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SNIFFED_BYTES = 1 << 16


def read_page(frame: bytes) -> bytes:
    """The sandbox's side of `extract`."""
    order, data = split_frame(frame)
    try:
        return _read(order, data)
    except BrokenPage as error:
        return join_frame({"error": str(error)}, b"")


def _read(order: dict[str, Any], data: bytes) -> bytes:
    data = _undo(data, order["codings"], Limits(order["max_bytes"]))
    text, encoding = decode(data, order["charset"], order["html"])
    title = None
    if order["html"]:
        title, text = extract_text(text, order["main_content"])
    # A character reference can name half of a surrogate pair.
    encoded = text.encode("utf-8", "replace")
    return join_frame(
        {"title": title, "encoding": encoding.name, "repaired": encoding.repaired}, encoded
    )


class Encoding(NamedTuple):
    """How bytes became text."""

    name: str
    repaired: bool


def decode(data: bytes, charset: str | None, is_html: bool) -> tuple[str, Encoding]:
    """The text of bytes, and the encoding that they turned out to have."""
    for mark, name in BOMS:
        if data.startswith(mark):
            return _decoded(data[len(mark) :], name)
    # Seven bits may be an encoding that shifts between character sets (ISO 2022, HZ), which UTF-8
    # would take at its letters.
    shifts = data.isascii() and (b"\x1b" in data or b"~{" in data)
    if not shifts and (text := _strictly(data, "utf-8")) is not None:
        return text, Encoding("utf-8", False)
    for name in (*_declared(data, charset, is_html), "utf-8"):
        if (text := _strictly(data, name)) is not None:
            return text, Encoding(name, False)
    return _decoded(data, "cp1252")


def _decoded(data: bytes, name: str) -> tuple[str, Encoding]:
    text = data.decode(name, "replace")
    return text, Encoding(name, "\ufffd" in text)


def _declared(data: bytes, charset: str | None, is_html: bool) -> list[str]:
    """Encodings by what the server, the page and statistics say, in that order."""
    start = data[:SNIFFED_BYTES]
    server = map_encoding_to_html5(charset, fallback_utf8=False) if charset else None
    page = detect_encoding(start, from_html_meta=True) if is_html else None
    said = [SUPERSETS.get(name, name) for name in (server, page) if name]
    return [*said, *filter(None, [guess_encoding(data)])]


def _strictly(data: bytes, name: str) -> str | None:
    try:
        return data.decode(name)
    except (UnicodeDecodeError, LookupError):
        return None


def _undo(data: bytes, codings: list[str], limits: Limits) -> bytes:
    """The content of a message body: its codings undone, the outermost first. Raises BrokenPage."""
    for coding in codings:
        try:
            data = _undo_one(data, coding, limits.record_bytes + 1)
        except BrokenPage:
            raise
        except (zlib.error, OSError, EOFError, ValueError) as error:
            raise BrokenPage(f"broken HTTP: the body is not {coding}") from error
        if len(data) > limits.record_bytes:
            raise BrokenPage(limits.over(f"a body in {coding}"))
    return data


def _undo_one(data: bytes, coding: str, max_bytes: int) -> bytes:
    """The content, or its first `max_bytes`."""
    match coding:
        case "gzip":
            return _inflate(data, 31, max_bytes)
        case "deflate":
            # By RFC 9110 with the header of zlib; servers leave it out often enough.
            try:
                return _inflate(data, 15, max_bytes)
            except zlib.error:
                return _inflate(data, -15, max_bytes)
        case "br":
            return _read_up_to(stream_io.BrotliReader(io.BytesIO(data)), max_bytes)
        case "zstd":
            return _read_up_to(stream_io.ZstdReader(io.BytesIO(data)), max_bytes)
        case "chunked":
            return _join_chunks(data)
    raise BrokenPage("broken HTTP: the body has an unknown encoding")


def _inflate(data: bytes, window_bits: int, max_bytes: int) -> bytes:
    return zlib.decompressobj(window_bits).decompress(data, max_bytes)


def _read_up_to(stream: Any, max_bytes: int) -> bytes:
    blocks: list[bytes] = []
    while max_bytes > 0 and (block := stream.read(min(max_bytes, 1 << 20))):
        blocks.append(block)
        max_bytes -= len(block)
    return b"".join(blocks)


def _join_chunks(data: bytes) -> bytes:
    """A chunked body (RFC 9112, 7.1). Crawlers often store it joined but leave the header: then it
    is as it is."""
    chunks: list[bytes] = []
    position = 0
    while True:
        end = data.find(b"\r\n", position)
        size = data[position : end if end >= 0 else len(data)].partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            if not chunks:
                return data
            raise
        if length == 0:
            return b"".join(chunks)
        begin = end + 2
        if end < 0 or length < 0 or begin + length > len(data):
            if not chunks:
                return data
            raise ValueError("a chunk is cut off")
        chunks.append(data[begin : begin + length])
        position = begin + length + 2

"""Reads pages and files that are one document each: decodes them and extracts their text.

Text: resiliparse's main content (tasks.ingest.maintext), which drops navigation, forms and
comments; paragraphs, lists and preformatted text keep their lines.

Runs in a sandbox (tasks.runtime.sandbox): all of it works on input that somebody else wrote to be
read by something else. What it needs is imported at its start, so that no page pays for it.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree.ElementTree import ParseError

from fastwarc import stream_io

from tasks.ingest.decoding import decode
from tasks.ingest.extraction import (
    latex,
    mail,
    notebook,
    pdf,
    subtitles,
    wikitext,
    zippedxml,
)
from tasks.ingest.maintext import extract_text
from tasks.readers.archives import ZIP_TROUBLE
from tasks.readers.pages import BrokenPage, PageText, join_frame, split_frame
from tasks.readers.recordlimits import Limits

Extractor = Callable[[bytes, str | None, int], PageText]
EXTRACTORS: Mapping[str, Extractor] = {
    "pdf": pdf.read,
    "docx": zippedxml.read_docx,
    "odt": zippedxml.read_odt,
    "epub": zippedxml.read_epub,
    "mail": mail.read,
    "notebook": notebook.read,
    "latex": latex.read,
    "subtitles": subtitles.read,
    "wikitext": wikitext.read,
}
LIBRARY_TROUBLE = (
    *ZIP_TROUBLE,
    ParseError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    StopIteration,
)
"""What libraries raise on input that is damaged or hostile."""


def read_page(frame: bytes) -> bytes:
    """The sandbox's side of `extract`."""
    order, data = split_frame(frame)
    try:
        return _read(order, data)
    except BrokenPage as error:
        return join_frame({"error": str(error)}, b"")


def _read(order: dict[str, Any], data: bytes) -> bytes:
    limits = Limits(order["max_bytes"])
    data = _undo(data, order["codings"], limits)
    kind, charset = order["kind"], order["charset"]
    if kind in ("html", "text"):
        found = _read_page(data, charset, kind == "html", order["main_content"])
    else:
        try:
            found = EXTRACTORS[kind](data, charset, limits.record_bytes)
        except BrokenPage:
            raise
        except LIBRARY_TROUBLE as error:
            raise BrokenPage(f"unreadable {kind}: damaged ({type(error).__name__})") from error
    # A character reference can name half of a surrogate pair.
    encoded = found.text.encode("utf-8", "replace")
    if len(encoded) > limits.record_bytes:
        raise BrokenPage(limits.over("a text"))
    return join_frame(found._replace(text="")._asdict(), encoded)


def _read_page(data: bytes, charset: str | None, is_html: bool, main_content: bool) -> PageText:
    text, encoding = decode(data, charset, is_html)
    title = None
    if is_html:
        title, text = extract_text(text, main_content)
    return PageText(text, title, encoding.name, encoding.repaired)


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

"""Web archives: WARC with the pages as they were served, and WET with the text that somebody extracted from them.

Records are found by FastWARC, in gzip (any number of members), zstd or plain. A `response` or `resource` record of a text is a
record of ours; its bytes are decoded and its text extracted later, in a process that may be killed (tasks.pages). A `conversion`
record is text already. Requests, metadata and the like are skipped. `position` is the byte offset in the uncompressed archive,
so compressing it otherwise changes no identity. Dropped are HTTP_ERROR (status other than 2xx) and NOT_TEXT (pictures, scripts,
PDF). Left out: revisit records (their page is elsewhere), segmented records.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from tasks.bytestreams import SoundBytes
from tasks.pages import Encoded
from tasks.readers.items import Columns, Dropped, Fault, Item, Record, Skipped, damaged

HTML_TYPES = ("text/html", "application/xhtml+xml")
PLAIN_TYPES = ("text/plain", "text/markdown")
DOCUMENTS = ("response", "resource", "conversion")
OTHERS = ("warcinfo", "request", "metadata", "revisit", "continuation")
MAX_CODINGS = 4
"""More layers than this are no page, but a trap."""


def read_warc(stream: BinaryIO, compression: str, name: str, columns: Columns) -> Iterator[Item]:
    """Records at the byte offset of their WARC record; `line` counts the records of the archive."""
    from fastwarc.warc import ArchiveIterator

    sound = SoundBytes(stream, compression)
    number, cut_off = 0, False
    try:
        for record in ArchiveIterator(
            io.BufferedReader(sound, 1 << 16), parse_http=True, auto_decode="none", stream_detect=False
        ):
            number += 1
            body = record.reader.read()
            if trouble := _header_trouble(record.headers):
                yield Fault(number, record.stream_pos, f"broken WARC: {trouble}")
                continue
            # FastWARC takes what is there for the whole record. Only the last one can be short.
            cut_off = len(body) < record.content_length or not record.headers.get("Content-Length")
            if cut_off:
                break
            yield _read_record(record, body, number, columns)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the file
        yield Fault(number + 1, None, f"broken WARC: {error} after record {number}", ends=True)
        return
    sound.drain()
    # A record ends with empty lines; what is too short for a header FastWARC passes over.
    if sound.damage or cut_off or sound.tail[-1:] not in (b"", b"\r", b"\n"):
        yield Fault(max(number, 1), None, damaged(sound.damage or "the last WARC record is cut off"), ends=True)


def _header_trouble(headers: Any) -> str | None:
    """What FastWARC passes over: lines that end without carriage return are one with the line, or the record, after them, and a
    length that is none counts as 0."""
    if any("\n" in value for _, value in headers.items()):
        return "a line of the header ends without carriage return"
    if not headers.get("WARC-Type", "").strip():
        return "a record without WARC-Type"
    length = headers.get("Content-Length", "0").strip()
    return None if length.isdecimal() and len(length) < 19 else "the Content-Length is no length"


def _read_record(record: Any, body: bytes, number: int, columns: Columns) -> Item:
    kind = record.headers.get("WARC-Type", "").strip().lower()
    if kind not in DOCUMENTS:
        return Skipped(f"warc_{kind}" if kind in OTHERS else "warc_unknown")
    headers, http = record.headers, record.http_headers
    known = {
        "id": (headers.get("WARC-Record-ID") or "").strip("<>") or None,
        "url": (headers.get("WARC-Target-URI") or "").strip("<>") or None,
        "added": headers.get("WARC-Date"),
    }
    media_type, _, parameters = (
        (http or headers).get("Content-Type", headers.get("WARC-Identified-Payload-Type", "")).partition(";")
    )
    media_type = media_type.strip().lower()
    details: dict[str, Any] = {"content_type": media_type, "warc_truncated": headers.get("WARC-Truncated")}
    position = record.stream_pos
    bare = Record(position, number, position, columns.values(None, **known))
    if kind == "conversion":
        try:
            text: Any = body.decode("utf-8")
        except UnicodeDecodeError as error:
            return Fault(number, position, f"invalid UTF-8: byte 0x{body[error.start]:02x} at byte {error.start} of the record")
    else:
        if http is not None:
            details["http_status"] = http.status_code
            if not 200 <= (http.status_code or 0) < 300:
                return Dropped("HTTP_ERROR", bare)
        if media_type not in HTML_TYPES and media_type not in PLAIN_TYPES:
            return Dropped("NOT_TEXT", bare)
        codings = _codings(http) if http is not None else ()
        if len(codings) > MAX_CODINGS:
            return Fault(number, position, f"broken HTTP: {len(codings)} layers of encoding")
        text = Encoded(body, _charset(parameters), media_type in HTML_TYPES, codings)
    values = {name: value for name, value in details.items() if value}
    return Record(position, number, position, values | columns.values(text, **known))


def _codings(http: Any) -> tuple[str, ...]:
    """What is to be undone, outermost first: transfer codings lie around content codings."""
    layers = [http.get("Content-Encoding", ""), http.get("Transfer-Encoding", "")]
    names = [name.strip().lower().removeprefix("x-") for layer in layers for name in layer.split(",")]
    return tuple(name for name in reversed(names) if name and name != "identity")


def _charset(parameters: str) -> str | None:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'") or None
    return None

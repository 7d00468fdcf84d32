"""Reads web archives: WARC with pages as they were served, and WET with their extracted text.

Archives may be plain, in gzip (any number of members), or in zstd, bzip2 or xz. A `response` or
`resource` record of a text is a record of ours; its bytes are decoded and its text extracted later,
in a process that may be killed (tasks.readers.pages). A `conversion` record is text already.
Requests, metadata and the like are skipped. `position` is the byte offset in the uncompressed
archive, so compressing it otherwise changes no identity; tasks.readers.warcframes says what it is
behind damage, and where records begin and end. Headers are parsed by FastWARC. Dropped are
HTTP_ERROR (status other than 2xx) and NOT_TEXT (pictures, scripts, PDF). Left out: revisit records
(their page is elsewhere), segmented records.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from tasks.readers.items import Columns, Dropped, Fault, Item, Record, Skipped
from tasks.readers.pages import Encoded
from tasks.readers.recordlimits import Limits

HTML_TYPES = ("text/html", "application/xhtml+xml")
PLAIN_TYPES = ("text/plain", "text/markdown")
DOCUMENTS = ("response", "resource", "conversion")
OTHERS = ("warcinfo", "request", "metadata", "revisit", "continuation")
MAX_CODINGS = 4
"""More layers than this are a trap, not a page."""
MAX_HTTP_HEADER_BYTES = 1 << 20


def read_warc(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """Records at the byte offset of their WARC record; `line` counts all records of the archive."""
    from tasks.readers.warcframes import Broken, read_frames

    for number, frame in enumerate(read_frames(stream, compression, limits), 1):
        if isinstance(frame, Broken):
            yield Fault(number, *frame)
        else:
            yield _read_record(frame.offset, frame.headers, frame.body, number, columns)


def _split_http(body: bytes) -> tuple[Any, bytes]:
    """Header and content of an HTTP message; lines may end without CR (RFC 9112, 2.2)."""
    from fastwarc.warc import HeaderMap

    from tasks.readers.warcframes import header_end, with_carriage_returns

    end = header_end(body, len(body))
    headers = HeaderMap("latin1")
    headers.parse(io.BytesIO(with_carriage_returns(body[:end][:MAX_HTTP_HEADER_BYTES])), True)
    return headers, b"" if end is None else body[end:]


def _read_record(position: int, headers: Any, body: bytes, number: int, columns: Columns) -> Item:
    kind = headers.get("WARC-Type", "").strip().lower()
    if kind not in DOCUMENTS:
        return Skipped(f"warc_{kind}" if kind in OTHERS else "warc_unknown")
    http = None
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/http":
        http, body = _split_http(body)
    known = {
        "id": (headers.get("WARC-Record-ID") or "").strip("<>") or None,
        "url": (headers.get("WARC-Target-URI") or "").strip("<>") or None,
        "added": headers.get("WARC-Date"),
    }
    identified = headers.get("WARC-Identified-Payload-Type", "")
    media_type, _, parameters = (http or headers).get("Content-Type", identified).partition(";")
    media_type = media_type.strip().lower()
    details = {"content_type": media_type, "warc_truncated": headers.get("WARC-Truncated")}
    bare = Record(position, number, position, columns.values(None, **known))
    if kind == "conversion":
        try:
            text: Any = body.decode("utf-8")
        except UnicodeDecodeError as error:
            bad = f"byte 0x{body[error.start]:02x} at byte {error.start} of the record"
            return Fault(number, position, f"invalid UTF-8: {bad}")
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
        kind = "html" if media_type in HTML_TYPES else "text"
        text = Encoded(body, _charset(parameters), kind, codings)
    values = {name: value for name, value in details.items() if value}
    return Record(position, number, position, values | columns.values(text, **known))


def _codings(http: Any) -> tuple[str, ...]:
    """What is to be undone, outermost first: transfer codings lie around content codings."""
    layers = f"{http.get('Content-Encoding', '')},{http.get('Transfer-Encoding', '')}".split(",")
    names = [layer.strip().lower().removeprefix("x-") for layer in reversed(layers)]
    return tuple(name for name in names if name not in ("", "identity"))


def _charset(parameters: str) -> str | None:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'") or None
    return None

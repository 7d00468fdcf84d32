"""Decodes pages and texts whose encoding is unknown, or only claimed.

Encoding: the first of these under which every byte has a meaning: a byte order mark; UTF-8, where
anything is beyond ASCII; what the server said; what the page says in `<meta>`; what statistics
guess (uchardet); else Windows-1252, with U+FFFD for what is left. UTF-8 goes before what the server
says, against the letter of the WHATWG's standard: text in another encoding is almost never valid
UTF-8, and servers declare defaults. Labels mean what browsers take them for (ISO-8859-1 is
Windows-1252, EUC-KR is CP949).
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from tasks.readers.encodings import SUPERSETS, guess_encoding

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SNIFFED_BYTES = 1 << 16


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

"""Reads dumps of wikis (MediaWiki's XML export): every article is a record in wikitext, whose text
is extracted later.

The stream is cut at `<page>` and `</page>`, which text in XML never holds, and each page is parsed
alone. So damage costs the page it is in, memory is one page, and there is no place for a definition
of entities. Of several revisions the last counts. Skipped: redirects, pages outside the main
namespace (talk, templates, files), and other XML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.etree import ElementTree

from tasks.readers.bytestreams import DamagedStream, read_blocks
from tasks.readers.items import Columns, Dropped, Fault, Item, Record, Skipped, damaged
from tasks.readers.pages import Encoded
from tasks.readers.recordlimits import Limits

BORDER = re.compile(rb"<page(?:\s[^<>]{0,40})?>|</page\s{0,40}>")
BORDER_BYTES = 64
"""No border is longer."""
BETWEEN = re.compile(rb"(?:\s|</mediawiki\s*>)*")
END, HEAD_BYTES = b"</mediawiki", 1 << 12
SIGNS = re.compile(rb"<mediawiki|<siteinfo>|<page>|<revision>")
"""What the head of a dump has, even if it is damaged."""
WIKITEXT = (None, "text/x-wiki", "wikitext")


def read_mediawiki(
    stream: BinaryIO, compression: str, name: str, columns: Columns, limits: Limits
) -> Iterator[Item]:
    """Records at the byte offset of their `<page>`; `line` counts pages."""
    pieces = _pieces(read_blocks(stream, compression, limits), limits.record_bytes)
    for number, (offset, kind, piece) in enumerate(pieces, 1):
        if isinstance(piece, DamagedStream):
            yield Fault(number, offset, damaged(piece), True, piece.stopped_at)
        elif kind == "page":
            yield _read_page(piece, number, offset, columns)
        elif kind == "long":
            yield Fault(number, offset, limits.over("a page"))
        elif kind == "endless":
            yield Fault(number, offset, damaged("the dump has no end"), True, 0, 0)
        elif kind == "foreign":
            yield Skipped("other_xml")
        else:
            yield Fault(number, offset, "broken XML: text outside of pages")


def _pieces(
    blocks: Iterator[bytes], max_page_bytes: int
) -> Iterator[tuple[int, str, bytes | DamagedStream]]:
    """(byte offset, what it is, bytes) of pages, and of what is between them and should not be."""
    data, base, place = bytearray(), 0, 0
    is_page = is_long = is_begun = False
    try:
        for block in blocks:
            data += block
            if not is_begun and base == 0 and not SIGNS.search(data, 0, HEAD_BYTES):
                if len(data) < HEAD_BYTES:
                    continue
                break
            while border := BORDER.search(data, place):
                opens = data[border.start() + 1] != ord("/")
                end = border.start() if opens else border.end()
                piece = bytes(data[:end])
                if is_page:
                    yield base, "page" if end <= max_page_bytes else "long", piece
                elif not is_long and not _is_nothing(piece, is_begun):
                    yield base, "between", piece
                del data[:end]
                base, place = base + end, 0 if not opens else border.end() - border.start()
                is_page, is_long, is_begun = opens, False, True
            place = max(place, len(data) - BORDER_BYTES)
            if len(data) > max_page_bytes + BORDER_BYTES:
                if not is_long:
                    yield base, "long", b""
                base, place = base + len(data) - BORDER_BYTES, 0
                del data[:-BORDER_BYTES]
                is_page, is_long, is_begun = False, True, True
    except DamagedStream as error:
        yield base, "damage", error
        return
    if not is_begun and not SIGNS.search(data, 0, HEAD_BYTES):
        if data:
            yield 0, "foreign", b""
    elif is_page:
        yield base, "page", bytes(data)
    else:
        if not is_long and not _is_nothing(bytes(data), is_begun):
            yield base, "between", bytes(data)
        if END not in data:
            yield base + len(data), "endless", b""


def _is_nothing(piece: bytes, is_begun: bool) -> bool:
    """Whether text outside of pages holds none: blanks, or the head of the dump."""
    return bool(BETWEEN.fullmatch(piece)) if is_begun else b"<revision" not in piece


def _read_page(piece: bytes, number: int, offset: int, columns: Columns) -> Item:
    try:
        page = ElementTree.fromstring(piece)
    except ElementTree.ParseError as error:
        line, column = error.position
        what = str(error).partition(":")[0]
        return Fault(
            number, offset, f"broken XML: {what}, line {line} of the page, column {column}"
        )
    except (ValueError, LookupError) as error:
        return Fault(number, offset, f"broken XML: {type(error).__name__}")
    revisions = page.findall("revision")
    text = revisions[-1].find("text") if revisions else None
    if page.find("redirect") is not None:
        return Skipped("wiki_redirect")
    if (page.findtext("ns") or "0").strip() != "0":
        return Skipped("wiki_other_namespace")
    if text is None:
        return Fault(number, offset, "broken XML: a page without text")
    title = (page.findtext("title") or "").strip()
    known = {"id": page.findtext("id"), "added": revisions[-1].findtext("timestamp")}
    values: dict[str, Any] = {"title": title} if title else {}
    if revisions[-1].findtext("format") not in WIKITEXT:
        bare = Record(offset, number, offset, values | columns.values(None, **known))
        return Dropped("NOT_TEXT", bare)
    data = (text.text or "").encode("utf-8", "replace")
    encoded = Encoded(data, "utf-8", "wikitext")
    return Record(offset, number, offset, values | columns.values(encoded, **known))

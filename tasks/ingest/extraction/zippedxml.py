"""Extracts the text of documents that are XML in zip archives: DOCX, ODT and EPUB.

DOCX (ECMA-376) and ODT (OASIS OpenDocument): paragraphs and headings are lines, cells of a table
row are separated by tabs. Left out: headers and footers, comments, deleted text, notes, and the
second form of drawings. EPUB (W3C): the text of all chapters in the order of the spine.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from defusedxml.ElementTree import fromstring
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.ingest.decoding import decode
from tasks.readers.pages import BrokenPage, PageText
from tasks.readers.recordlimits import Limits

OPENING, CLOSING = True, False


def read_docx(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """The body of a Word document."""
    archive = _Archive(data, max_bytes)
    body = archive.xml("word/document.xml")
    text = _joined(_office_text(body, DOCX_SIGNS, DOCX_TEXT, DOCX_LEFT_OUT))
    properties = archive.xml("docProps/core.xml") if archive.has("docProps/core.xml") else None
    return PageText(text, **_dublin_core(properties))


def read_odt(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """The body of an OpenDocument text."""
    archive = _Archive(data, max_bytes)
    text = _joined(_office_text(archive.xml("content.xml"), ODT_SIGNS, None, ODT_LEFT_OUT))
    properties = archive.xml("meta.xml") if archive.has("meta.xml") else None
    return PageText(text, **_dublin_core(properties))


def read_epub(data: bytes, charset: str | None, max_bytes: int) -> PageText:
    """All chapters of a book, with blank lines between them."""
    archive = _Archive(data, max_bytes)
    container = archive.xml("META-INF/container.xml")
    package = next(e.get("full-path") for e in container.iter() if _name(e) == "rootfile")
    book = archive.xml(package)
    paths = {e.get("id"): e.get("href") for e in book.iter() if _name(e) == "item"}
    order = [paths.get(e.get("idref")) for e in book.iter() if _name(e) == "itemref"]
    chapters, encrypted = [], set(_encrypted(archive))
    for path in order:
        if path is None:
            raise BrokenPage("unreadable epub: a chapter of its spine is missing")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(path)))
        if place in encrypted:
            raise BrokenPage("unreadable epub: a chapter is encrypted")
        page, _ = decode(archive.bytes(place), None, True)
        chapters.append(extract_plain_text(HTMLTree.parse(page), main_content=False).strip())
    return PageText("\n\n".join(filter(None, chapters)), **_dublin_core(book))


def _encrypted(archive: _Archive) -> Iterator[str]:
    """Members of a book that a key opens: often fonts alone (EPUB 3.3, 4.2.6.3.2)."""
    if archive.has("META-INF/encryption.xml"):
        for element in archive.xml("META-INF/encryption.xml").iter():
            if _name(element) == "CipherReference":
                yield posixpath.normpath(unquote(element.get("URI") or ""))


class _Archive:
    """A zip archive, of which no more than `max_bytes` are taken."""

    def __init__(self, data: bytes, max_bytes: int) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._left_bytes = self._max_bytes = max_bytes

    def has(self, name: str) -> bool:
        return name in self._zip.namelist()

    def bytes(self, name: str) -> bytes:
        with self._zip.open(name) as member:
            data = member.read(self._left_bytes + 1)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise BrokenPage(Limits(self._max_bytes).over("the content of a zipped document"))
        return data

    def xml(self, name: str) -> Any:
        return fromstring(self.bytes(name))


DOCX_SIGNS: Mapping[str, tuple[str, str]] = {
    "tab": ("\t", ""),
    "br": ("\n", ""),
    "cr": ("\n", ""),
    "noBreakHyphen": ("-", ""),
    "p": ("", "\n"),
    "tc": ("", "\t"),
    "tr": ("", "\n"),
    "tbl": ("", "\n"),
}
"""What stands before and after an element."""
DOCX_TEXT = "t"
"""The only element whose text counts."""
DOCX_LEFT_OUT = ("Fallback", "pPr", "rPr", "moveFrom")
ODT_SIGNS: Mapping[str, tuple[str, str]] = {
    "tab": ("\t", ""),
    "line-break": ("\n", ""),
    "p": ("", "\n"),
    "h": ("", "\n"),
    "table-cell": ("", "\t"),
    "table-row": ("", "\n"),
    "table": ("", "\n"),
}
ODT_LEFT_OUT = (
    "tracked-changes",
    "annotation",
    "note",
    "forms",
    "automatic-styles",
    "font-face-decls",
)
PARAGRAPHS = ("p", "h")


def _joined(pieces: Iterator[str]) -> str:
    """The text without what ends the last paragraph of a cell and the last cell of a row."""
    lines = "".join(pieces).replace(" \t", "\t").split("\n")
    return "\n".join(line.rstrip(" \t") for line in lines)


def _office_text(
    root: Any, signs: Mapping[str, tuple[str, str]], only: str | None, left_out: tuple[str, ...]
) -> Iterator[str]:
    """Pieces of the text below an element. Without calls in calls: documents nest as they like."""
    cells = 0
    waiting: list[tuple[Any, bool]] = [(root, OPENING)]
    while waiting:
        element, opens = waiting.pop()
        name = _name(element)
        before, after = signs.get(name, ("", ""))
        if not opens:
            cells -= name in ("tc", "table-cell")
            # Within a cell, the end of a paragraph is not the end of a row.
            yield " " if cells and after == "\n" and name in PARAGRAPHS else after
            yield (element.tail or "") if only is None and element is not root else ""
            continue
        if name in left_out:
            yield (element.tail or "") if only is None else ""
            continue
        cells += name in ("tc", "table-cell")
        yield before
        if name == "s":  # blanks of OpenDocument
            yield " " * min(int(element.get(f"{element.tag[:-1]}c") or 1), 1000)
        if element.text and only in (None, name):
            yield element.text
        waiting.append((element, CLOSING))
        waiting.extend((child, OPENING) for child in reversed(element))


def _name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _dublin_core(root: Any) -> dict[str, Any]:
    """What metadata of a document say, as arguments of PageText."""
    found: dict[str, str] = {}
    for element in root.iter() if root is not None else ():
        name, text = _name(element), (element.text or "").strip()
        if text and name in ("title", "language", "rights"):
            found.setdefault({"rights": "license"}.get(name, name), text)
    return {"title": found.pop("title", None), "values": found}

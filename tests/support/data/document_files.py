"""Makes one small document in each format that is extracted in a sandbox."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any

from tests.support.data.input_files import as_zip

FIRST, SECOND = "größere 数据 of the harbour", "A second & last paragraph"
OFFICE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
ODF = "urn:oasis:names:tc:opendocument:xmlns"
DC = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'


def docx(body: str) -> bytes:
    core = (
        f'<c:x xmlns:c="core" {DC}><dc:title>A title</dc:title><dc:language>de</dc:language></c:x>'
    )
    document = f'<w:document xmlns:w="{OFFICE}"><w:body>{body}</w:body></w:document>'
    return as_zip(
        {
            "[Content_Types].xml": b"<Types/>",
            "word/document.xml": document.encode(),
            "docProps/core.xml": core.encode(),
        }
    )


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text.replace('&', '&amp;')}</w:t></w:r></w:p>"


def odt(body: str) -> bytes:
    content = (
        f'<office:document-content xmlns:office="{ODF}:office:1.0" xmlns:text="{ODF}:text:1.0"'
        f' xmlns:table="{ODF}:table:1.0"><office:body><office:text>{body}</office:text>'
        "</office:body></office:document-content>"
    )
    kind = b"application/vnd.oasis.opendocument.text"
    return as_zip({"mimetype": kind, "content.xml": content.encode()}, method=0)


def epub(chapters: Sequence[str], package: str = "OPS/book.opf") -> bytes:
    items = "".join(f'<item id="c{i}" href="{i}%20c.xhtml"/>' for i in range(len(chapters)))
    spine = "".join(f'<itemref idref="c{i}"/>' for i in range(len(chapters)))
    book = (
        f"<package {DC}><metadata><dc:title>A title</dc:title><dc:rights>CC-BY-4.0</dc:rights>"
        f"</metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = f'<container><rootfiles><rootfile full-path="{package}"/></rootfiles></container>'
    members = {"mimetype": b"application/epub+zip", "META-INF/container.xml": container.encode()}
    members[package] = book.encode()
    for i, chapter in enumerate(chapters):
        page = f"<html><head><title>x</title></head><body>{chapter}</body></html>"
        members[f"OPS/{i} c.xhtml"] = page.encode()
    return as_zip(members)


def pdf(pages: Sequence[Sequence[str]]) -> bytes:
    """A PDF of lines in Latin letters."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>"]
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects.append(f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>".encode())
    objects.append(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
    for i, lines in enumerate(pages):
        shown = "".join(f"({line}) Tj T* " for line in lines)
        content = f"BT /F1 12 Tf 14 TL 72 720 Td {shown}ET".encode("cp1252")
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
            b"/Contents %d 0 R>>" % (5 + 2 * i)
        )
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(content), content))
    data, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return data + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<</Size %d/Root 1 0 R>>\n"
        b"startxref\n%d\n%%%%EOF\n" % (size, table, size, len(data))
    )


def notebook(cells: Sequence[tuple[str, str]]) -> bytes:
    made = [
        {"cell_type": kind, "source": text.splitlines(True), "outputs": []} for kind, text in cells
    ]
    return json.dumps({"cells": made, "metadata": {"kernelspec": {"language": "python"}}}).encode()


def mail(body: bytes, *headers: str) -> bytes:
    return "\n".join(["Subject: A title", *headers, "", ""]).encode() + body


def wiki(pages: Sequence[tuple[str, str]]) -> bytes:
    """pages: (elements before the revision, wikitext)."""
    made = "".join(
        f"  <page>\n    <title>T{i}</title>{before}<id>{i}</id>\n    <revision><id>9</id>"
        f'<timestamp>2020-01-0{i % 9 + 1}T00:00:00Z</timestamp><text xml:space="preserve">'
        f"{text.replace('&', '&amp;').replace('<', '&lt;')}</text></revision>\n  </page>\n"
        for i, (before, text) in enumerate(pages)
    )
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">\n  <siteinfo></siteinfo>\n'
    )
    return f"{head}{made}</mediawiki>\n".encode()


DOCUMENTS: dict[str, bytes] = {
    "r.docx": docx(paragraph(FIRST) + paragraph(SECOND)),
    "r.odt": odt(f"<text:h>{FIRST}</text:h><text:p>{SECOND.replace('&', '&amp;')}</text:p>"),
    "r.epub": epub([f"<p>{FIRST}", f"<p>{SECOND.replace('&', '&amp;')}"]),
    "r.eml": mail(f"{FIRST}\n\n{SECOND}\n".encode(), "Content-Type: text/plain; charset=utf-8"),
    "r.ipynb": notebook([("markdown", FIRST), ("markdown", SECOND)]),
    "r.tex": (
        '\\documentclass{a}\n\\title{x}\n\\begin{document}\n\\emph{gr\\"o\\ss ere} 数据 of the'
        " harbour % not this\n\nA second \\& last paragraph\n\\end{document}\n"
    ).encode(),
    "r.srt": (
        f"1\n00:00:01,000 --> 00:00:02,500\n<i>{FIRST}</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n"
        f"{{\\an8}}{SECOND}\n"
    ).encode(),
    "r.vtt": (
        f"WEBVTT\n\nNOTE x\n\n00:01.000 --> 00:02.500 align:start\n<v Ann>{FIRST}\n\n"
        f"00:03.000 --> 00:04.000\n{FIRST}\n{SECOND.replace('&', '&amp;')}\n"
    ).encode(),
}
"""The same two paragraphs in each."""


def mds(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A shard as MosaicML Streaming's writer makes it."""
    sizes = {"int": 8, "float64": 8}
    encode: dict[str, Callable[[Any], bytes]] = {
        "int": lambda value: struct.pack("<q", value),
        "float64": lambda value: struct.pack("<d", value),
        "json": lambda value: json.dumps(value).encode(),
        "str": lambda value: value.encode(),
        "pkl": bytes,
    }
    samples = []
    for row in rows:
        cells = {name: encode[kind](row[name]) for name, kind in columns.items()}
        variable = [len(cells[name]) for name, kind in columns.items() if kind not in sizes]
        samples.append(struct.pack(f"<{len(variable)}I", *variable) + b"".join(cells.values()))
    config = {
        "column_encodings": list(columns.values()),
        "column_names": list(columns),
        "column_sizes": [sizes.get(kind) for kind in columns.values()],
        "format": "mds",
        "version": 2,
    }
    described = json.dumps(config, sort_keys=True).encode()
    begin = 4 + 4 * (len(rows) + 1) + len(described)
    places = [begin, *(begin + end for end in accumulate(map(len, samples)))]
    head = struct.pack(f"<{len(places) + 1}I", len(rows), *places)
    return head + described + b"".join(samples)


def sqlite(rows: Sequence[Mapping[str, str]]) -> bytes:
    """A database with one table of texts."""
    with closing(sqlite3.connect(":memory:")) as made:
        made.execute("create table documents (id text, text text)")
        made.executemany("insert into documents values (:id, :text)", rows)
        made.commit()
        return made.serialize()

"""Lists the files that are read into documents: every format, in archives and compressed too, and
every kind of document whose text is extracted."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

from tasks.readers.formats import BY_NAME, Layout, format_of
from tests.fuzz.target import Read, Target
from tests.support.data.document_files import DOCUMENTS, mail, mds, pdf, sqlite, wiki
from tests.support.data.input_files import (
    COLUMNS,
    COMPRESS,
    as_tar,
    as_zip,
    every_format,
    http_response,
    warc_record,
)

RECORDS = [{"id": f"r{i}", "text": f'text {i} "größere" 数据\n', "url": f"u{i}"} for i in range(6)]
PAGE = http_response(
    b"<html><body><p>words</p></body></html>",
    "Content-Type: text/html",
    "Transfer-Encoding: chunked",
)
WIKITEXT = (
    b"{{Box|a={{b}}}} '''Boat''' is a [[vessel|thing]].<ref name=x>y</ref> [[File:a.jpg|thumb|c]]\n"
    b"== Use ==\n{| class=t\n|-\n| one || two\n|}\n* [https://a.example words]<!-- z -->\n"
)


def _reader(name: str, finish: Callable[[bytes], bytes] = bytes, layout: Layout = BY_NAME) -> Read:
    def read(data: bytes, folder: Path) -> None:
        from tasks.readers import read_streams
        from tasks.readers.recordlimits import Limits

        for _, items in read_streams(
            io.BytesIO(finish(data)), name, COLUMNS, layout, Limits(1 << 22)
        ):
            for _ in items:
                pass

    return read


def _page(coding: str, compress: Callable[[bytes], bytes]) -> Read:
    def read(data: bytes, folder: Path) -> None:
        from tasks.ingest.pagetext import read_page
        from tasks.readers.pages import join_frame

        order = {
            "charset": None,
            "kind": "html",
            "codings": [coding],
            "main_content": True,
            "max_bytes": 1 << 22,
        }
        read_page(join_frame(order, compress(data)))

    return read


def _document(kind: str) -> Read:
    def read(data: bytes, folder: Path) -> None:
        from tasks.ingest.pagetext import read_page
        from tasks.readers.pages import join_frame

        order = {"charset": None, "kind": kind, "codings": [], "main_content": True}
        read_page(join_frame({**order, "max_bytes": 1 << 22}, data))

    return read


def _with_checksums(data: bytes) -> bytes:
    """A tar archive whose headers have the checksums of what is in them."""
    blocks = bytearray(data)
    for begin in range(0, len(blocks) - 511, 512):
        if blocks[begin + 257 : begin + 262] == b"ustar":
            blocks[begin + 148 : begin + 156] = b" " * 8
            blocks[begin + 148 : begin + 156] = b"%06o\0 " % sum(blocks[begin : begin + 512])
    return bytes(blocks)


def reader_targets() -> dict[str, Target]:
    files = every_format(RECORDS) | {
        "page.html": b"<!doctype html><title>a</title><p>words",
        "page.txt": "größere 数据\n".encode(),
        "r.warc": warc_record(
            "response", PAGE, Content_Type="application/http", WARC_Target_URI="http://a.example/"
        ),
        "array.json": json.dumps(RECORDS, indent=1).encode(),
        "wiki.xml": wiki([("", "one '''word'''"), ("<ns>1</ns>", "two")]),
        "list.mbox": b"From a@b Sun\n" + mail(b"words\n\n") + b"From c@d Sun\n" + mail(b"more\n"),
        "shard.mds": mds({"id": "int", "text": "str"}, [{"id": i, "text": "x"} for i in range(3)]),
        "rows.sqlite": sqlite(RECORDS),
        "nested.zip": as_zip({"a.tar": as_tar({"b.jsonl": b'{"text": "c"}\n'})}),
    }
    targets = {f"reader {name}": Target([data], _reader(name)) for name, data in files.items()}
    # Changes of what is compressed, and of headers whose checksums hold, go deeper than those of a
    # file.
    for name, compress in (
        ("r.jsonl.gz", COMPRESS[".gz"]),
        ("r.warc.wet.gz", COMPRESS[".gz"]),
        ("r.csv.zst", COMPRESS[".zst"]),
    ):
        targets[f"within {name}"] = Target(
            [files[name.rpartition(".")[0]]], _reader(name, compress)
        )
    for name, data in (DOCUMENTS | {"r.pdf": pdf([["one", "two"], ["three"]])}).items():
        form = format_of(name)
        assert form is not None
        targets[f"document {name}"] = Target([data], _document(form.kind))
    targets["document wikitext"] = Target([WIKITEXT], _document("wikitext"))
    samples = as_tar({"0.txt": b"one", "0.json": b'{"a": 1}', "1.txt": b"two"})
    layout = Layout(archive_unit="sample")
    targets["samples"] = Target([samples], _reader("s.tar", _with_checksums, layout))
    for encoding in ("auto", "gb18030", "utf-16-le"):
        layout = Layout(encoding=encoding)
        text = "größere 数据\n" if encoding != "auto" else "größere Daten\n"
        seeds = [text.encode("cp1252" if encoding == "auto" else encoding)]
        targets[f"encoding {encoding}"] = Target(seeds, _reader("a.csv", layout=layout))
    html, gz = files["page.html"], COMPRESS[".gz"](files["page.html"])
    targets["page"] = Target([html], _page("chunked", bytes))
    targets["page in gzip"] = Target([gz], _page("gzip", bytes))
    targets["page in zstd"] = Target([COMPRESS[".zst"](html)], _page("zstd", bytes))
    targets["within page"] = Target([html], _page("gzip", COMPRESS[".gz"]))
    targets["within r.tar"] = Target([files["r.tar"]], _reader("r.tar", _with_checksums))
    return targets

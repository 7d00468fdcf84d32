"""Web archives: which records are documents, what they are called, and what becomes of the
others."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tasks.readers import Dropped, Fault, Item, Record, Skipped
from tasks.readers.pages import Encoded
from tests.support.data.input_files import http_response, read_items, warc_record

HTML = "Content-Type: text/html; charset=EUC-KR"


def page(
    body: bytes = b"<p>text",
    *headers: str,
    status: str = "200 OK",
    kind: str = "response",
    **more: str,
) -> bytes:
    named = {
        "WARC_Record_ID": "<urn:uuid:1>",
        "WARC_Target_URI": "https://x.example/a",
        "WARC_Date": "2026-11-27T00:00:00Z",
    }
    block = (
        http_response(body, *(headers or (HTML,)), status=status)
        if kind in ("response", "revisit")
        else body
    )
    content_type = (
        "application/http; msgtype=response" if kind in ("response", "revisit") else "text/html"
    )
    return warc_record(kind, block, Content_Type=content_type, **named, **more)


def read(tmp_path: Path, *records: bytes, name: str = "a.warc") -> list[Item]:
    (tmp_path / name).write_bytes(b"".join(records))
    return read_items(tmp_path / name)


def test_response_is_a_record_with_its_address_date_and_type(tmp_path: Path) -> None:
    first = warc_record("warcinfo", b"software: x\r\n")
    _, record = read(tmp_path, first, page(b"\xb0\xa1", HTML, WARC_Truncated="length"))
    assert isinstance(record, Record)
    assert record.values == {
        "text": Encoded(b"\xb0\xa1", "EUC-KR", "html"),
        "id": "urn:uuid:1",
        "url": "https://x.example/a",
        "added": "2026-11-27T00:00:00Z",
        "content_type": "text/html",
        "http_status": 200,
        "warc_truncated": "length",
    }
    assert (record.position, record.byte_offset, record.line) == (len(first), len(first), 2)


def test_position_is_that_of_the_uncompressed_archive_whatever_its_members(tmp_path: Path) -> None:
    records = [page(b"<p>" + b"x" * i) for i in range(5)]
    plain = read(tmp_path, *records)
    members = read(tmp_path, *map(gzip.compress, records), name="b.warc.gz")
    whole = read(tmp_path, gzip.compress(b"".join(records)), name="c.warc.gz")
    offsets = [sum(map(len, records[:i])) for i in range(5)]
    assert (
        [i.position for i in plain]
        == [i.position for i in members]
        == [i.position for i in whole]
        == offsets
    )


def test_requests_metadata_and_revisits_are_skipped_by_their_kind(tmp_path: Path) -> None:
    kinds = ["warcinfo", "request", "metadata", "revisit", "continuation", "novelty"]
    items = read(tmp_path, *(page(kind=kind) for kind in kinds), page())
    assert [i.kind for i in items if isinstance(i, Skipped)] == [
        f"warc_{k}" for k in kinds[:-1]
    ] + ["warc_unknown"]
    assert isinstance(items[-1], Record)


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (page(status="404 Not Found"), Dropped("HTTP_ERROR")),
        (page(status="301 Moved"), Dropped("HTTP_ERROR")),
        (page(b"\x89PNG", "Content-Type: image/png"), Dropped("NOT_TEXT")),
        (page(b"a{}", "Content-Type: text/css"), Dropped("NOT_TEXT")),
        (page(b"?", "X: no type"), Dropped("NOT_TEXT")),
        (
            page(b"x", HTML, "Content-Encoding: " + ",".join(["gzip"] * 9)),
            Fault(1, 0, "broken HTTP: 9 layers of encoding"),
        ),
        (
            warc_record("conversion", b"caf\xe9"),
            Fault(1, 0, "invalid UTF-8: byte 0xe9 at byte 3 of the record"),
        ),
    ],
)
def test_what_is_no_page_is_dropped_or_quarantined_for_a_reason(
    record: bytes, outcome: Item, tmp_path: Path
) -> None:
    assert read(tmp_path, record) == [outcome]


def test_a_page_that_is_dropped_has_its_id_and_place(tmp_path: Path) -> None:
    first = page()
    _, dropped = read(tmp_path, first, page(status="404 Not Found"))
    assert (
        isinstance(dropped, Dropped)
        and dropped.record is not None
        and dropped.record.values["id"] == "urn:uuid:1"
    )
    assert (dropped.record.position, dropped.record.line) == (len(first), 2)


def test_plain_text_resources_and_types_without_a_header_are_records(tmp_path: Path) -> None:
    items = read(
        tmp_path,
        page(b"plain", "Content-Type: TEXT/PLAIN"),
        page(b"<p>kept", kind="resource"),
        page(b"<p>named", "X: no type", WARC_Identified_Payload_Type="text/html"),
        page(b"...", HTML, "Content-Encoding: gzip, br", "Transfer-Encoding: chunked"),
    )
    texts = [i.values["text"] for i in items if isinstance(i, Record)]
    assert texts == [
        Encoded(b"plain", None, "text"),
        Encoded(b"<p>kept", None, "html"),
        Encoded(b"<p>named", None, "html"),
        Encoded(b"...", "EUC-KR", "html", ("chunked", "br", "gzip")),
    ]


@pytest.mark.parametrize(
    ("old", "new", "trouble"),
    [
        (
            b"\r\nContent-Length",
            b"\nContent-Length",
            "a line of the header ends without carriage return",
        ),
        (b"\r\n", b"\n", "a line of the header ends without carriage return"),
        (b"Content-Length: ", b"Content-Length: -", "the Content-Length is not a length"),
        (
            b"Content-Length: ",
            b"Content-Length: 9999999999999999999",
            "the Content-Length is not a length",
        ),
        (b"Content-Length: ", b"Content-Length: x", "the Content-Length is not a length"),
        (b"WARC-Type: conversion\r\n", b"", "a record without WARC-Type"),
    ],
)
def test_header_that_says_nothing_of_its_record_is_a_fault_and_no_empty_document(
    old: bytes, new: bytes, trouble: str, tmp_path: Path
) -> None:
    items = read(
        tmp_path,
        warc_record("conversion", b"one").replace(old, new),
        warc_record("conversion", b"two"),
    )
    first = next(item for item in items if not isinstance(item, Record))
    assert first == Fault(1, 0, f"broken WARC: {trouble}")
    assert all(item.values["text"] == "two" for item in items if isinstance(item, Record))
    assert not any(isinstance(item, (Dropped, Skipped)) for item in items)


def test_archive_that_is_cut_off_keeps_its_whole_records(tmp_path: Path) -> None:
    records = [page(b"<p>" + bytes([97 + i]) * 900) for i in range(6)]
    data = gzip.compress(b"".join(records))
    *kept, fault = read(tmp_path, data[: len(data) - 30], name="a.warc.gz")
    assert [i.position for i in kept if isinstance(i, Record)] == [
        sum(map(len, records[:n])) for n in range(len(kept))
    ]
    assert isinstance(fault, Fault) and fault.error == "damaged file: truncated gzip stream"
    in_lines = page(b"<p>a line\nand another one")
    (fault,) = read(tmp_path, in_lines[: in_lines.index(b"and another")], name="c.warc")
    assert fault == Fault(1, 0, "damaged file: the last WARC record is cut off")
    plain = b"".join(records)
    for cut in (len(records[-1]) // 2, len(records[-1]) - 5):
        *kept, fault = read(tmp_path, plain[: len(plain) - cut], name="b.warc")
        assert isinstance(fault, Fault) and len(kept) in (5, 6)
